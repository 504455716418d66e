"""The configs of all verbs: the only place where parameters and their defaults are defined.

Options of the command line, parameters of MLproject and KFP, and MLflow's params are all derived from these models.
Nothing here imports torch.
"""

from posgap.config.base import BackendConfig, Config, FileConfig, GenerationConfig, PromptConfig, StageConfig
from posgap.config.cluster import ClusterConfig, PoolConfig, PreflightConfig
from posgap.config.data import (
    DataVersionConfig,
    FetchConfig,
    ImportConfig,
    MakeKVConfig,
    MakeNeedleConfig,
    MakeQAConfig,
    MakeTwoHopConfig,
    NewestConfig,
    ValidateConfig,
    VerifyConfig,
)
from posgap.config.distillation import DistillConfig, TeacherConfig, TrainJobConfig
from posgap.config.fields import POSITIONAL, Role, plain_type, role
from posgap.config.measurement import CompareConfig, DiagnoseConfig, MergeConfig, PlanConfig, SweepConfig
from posgap.config.pipelines import (
    CompiledPipeline,
    DemoConfig,
    NamedScheduleConfig,
    PipelineArguments,
    PipelineCompileConfig,
    PipelineLintConfig,
    PipelineOnCluster,
    PipelineRunConfig,
    PipelineSubmitConfig,
    ScheduleCreateConfig,
    ScheduleDeleteConfig,
    ScheduleListConfig,
    ScheduleName,
    SchedulePauseConfig,
    ScheduleResumeConfig,
    ServerConfig,
)
from posgap.config.policy import Policy
from posgap.config.rollout import (
    RolloutCompareConfig,
    RolloutExperimentConfig,
    RolloutMeasureConfig,
    RolloutPredictConfig,
)
from posgap.config.scaling import ScaleApplyConfig, ScaleSearchConfig, ScaleTransferConfig, ServeCheckConfig
from posgap.config.tracking import (
    GateConfig,
    GateReplayConfig,
    PlanGateConfig,
    PolicyDefaultConfig,
    PromoteConfig,
    ReportConfig,
    SyncConfig,
)

__all__ = [
    "POSITIONAL",
    "BackendConfig",
    "ClusterConfig",
    "CompareConfig",
    "CompiledPipeline",
    "Config",
    "DataVersionConfig",
    "DemoConfig",
    "DiagnoseConfig",
    "DistillConfig",
    "FetchConfig",
    "FileConfig",
    "GateConfig",
    "GateReplayConfig",
    "GenerationConfig",
    "ImportConfig",
    "MakeKVConfig",
    "MakeNeedleConfig",
    "MakeQAConfig",
    "MakeTwoHopConfig",
    "MergeConfig",
    "NamedScheduleConfig",
    "NewestConfig",
    "PipelineArguments",
    "PipelineCompileConfig",
    "PipelineLintConfig",
    "PipelineOnCluster",
    "PipelineRunConfig",
    "PipelineSubmitConfig",
    "PlanConfig",
    "PlanGateConfig",
    "Policy",
    "PolicyDefaultConfig",
    "PoolConfig",
    "PreflightConfig",
    "PromoteConfig",
    "PromptConfig",
    "ReportConfig",
    "Role",
    "RolloutCompareConfig",
    "RolloutExperimentConfig",
    "RolloutMeasureConfig",
    "RolloutPredictConfig",
    "ScaleApplyConfig",
    "ScaleSearchConfig",
    "ScaleTransferConfig",
    "ScheduleCreateConfig",
    "ScheduleDeleteConfig",
    "ScheduleListConfig",
    "ScheduleName",
    "SchedulePauseConfig",
    "ScheduleResumeConfig",
    "ServeCheckConfig",
    "ServerConfig",
    "StageConfig",
    "SweepConfig",
    "SyncConfig",
    "TeacherConfig",
    "TrainJobConfig",
    "ValidateConfig",
    "VerifyConfig",
    "plain_type",
    "role",
]
