"""All verbs: what is typed for each, its options, its work, an example, and the heading under which help lists it."""

from enum import Enum
from typing import NamedTuple

from posgap.cli.config import ConfigFileConfig, DoctorConfig, InitConfig
from posgap.data.config import (
    DataVersionConfig,
    FetchConfig,
    ImportConfig,
    MakeConfig,
    ReleaseConfig,
    ValidateConfig,
)
from posgap.demo.config import DemoConfig
from posgap.distillation.config import DistillConfig, PlanDistillConfig, TeacherConfig, TrainJobConfig
from posgap.foundation.config import Config
from posgap.gating.config import (
    CheckConfig,
    GateConfig,
    PlanGateConfig,
    PolicyConfig,
)
from posgap.measurement.config import CompareConfig, DiagnoseConfig, GradeConfig, MergeConfig, PlanConfig, SweepConfig
from posgap.mitigating.config import ApplyConfig, MitigateConfig
from posgap.peers.config import HubPushConfig
from posgap.pipelines.config import (
    PipelineCompileConfig,
    PipelineLintConfig,
    PipelineRunConfig,
    PipelineSubmitConfig,
    ScheduleConfig,
)
from posgap.preflight.config import PreflightConfig
from posgap.rollout.config import (
    RolloutAdviseConfig,
    RolloutExperimentConfig,
    RolloutMeasureConfig,
    RolloutPredictConfig,
)
from posgap.scaling.config import ScaleSearchConfig
from posgap.storage.config import VerifyConfig
from posgap.tracking.config import (
    ApproveConfig,
    GcConfig,
    HistoryConfig,
    PromoteConfig,
    ReportConfig,
    RollbackConfig,
    SyncConfig,
)
from posgap.workflows.config import ChampionConfig, WatchConfig


class Kind(Enum):
    """What a verb is beside a command."""

    COMMAND = "nothing else"
    STAGE = "a stage, and no more: whether its output is complete is seen before the stage's module is imported"
    NEEDS_MODEL = "no stage, but its work imports torch: what it reads is looked for before"
    STAGE_WITH_CHECKS = "a stage whose verb asks first what goes before it, or about its output"


class Verb(NamedTuple):
    """A verb: its options are the config's fields, its help is the config's docstring."""

    config: type[Config]
    work: str  # "module:function"
    example: str  # what follows the verb in a command that works
    results: tuple[str, ...] = ()  # files of its folder; `--json` prints the first that is there; none: what it shows
    kind: Kind = Kind.COMMAND


# Each heading of `posgap --help` with its verbs, by what is typed for them.
SECTIONS: dict[str, dict[str, Verb]] = {
    "Measure": {
        "data fetch": Verb(FetchConfig, "posgap.data.verbs:fetch", "nq-20"),
        "data make": Verb(MakeConfig, "posgap.data.verbs:make", "kv --n-examples 40 --out made.jsonl.gz"),
        "data import": Verb(
            ImportConfig,
            "posgap.data.verbs:import_examples",
            "--format litm-kv --input made.jsonl.gz --out kv.jsonl.gz",
        ),
        "data release": Verb(ReleaseConfig, "posgap.data.verbs:release", "s3://bucket/data/train-2026-11-20"),
        "data version": Verb(
            DataVersionConfig,
            "posgap.stages.data_version:version",
            "s3://bucket/data/train-",
            ("version.json",),
            Kind.STAGE_WITH_CHECKS,
        ),
        "validate": Verb(
            ValidateConfig,
            "posgap.stages.validate:validate",
            "--model Qwen/Qwen3-0.6B --examples kv.jsonl.gz --out run/eval",
            ("validation.json",),
            Kind.STAGE,
        ),
        "plan sweep": Verb(PlanConfig, "posgap.measurement.power:plan", "--detect 3"),
        "plan gate": Verb(PlanGateConfig, "posgap.gating.planning:plan_gate", "--max-gap 10 --examples 300"),
        "plan distill": Verb(
            PlanDistillConfig,
            "posgap.distillation.planning:plan_distill",
            "--model Qwen/Qwen3-0.6B --gpus 4 --gpu-memory 80",
            kind=Kind.NEEDS_MODEL,
        ),
        "sweep": Verb(
            SweepConfig,
            "posgap.stages.sweep:sweep",
            "--task kv --model Qwen/Qwen3-0.6B --examples kv.jsonl.gz --out run/base",
            ("sweep.json", "lengths.json"),
            Kind.STAGE_WITH_CHECKS,
        ),
        "merge": Verb(
            MergeConfig,
            "posgap.stages.merge:merge",
            "run/shard-1 run/shard-2 --out run/base",
            ("sweep.json",),
            Kind.STAGE,
        ),
        "grade": Verb(
            GradeConfig,
            "posgap.stages.grade:grade",
            "--sweep run/base --examples kv.jsonl.gz --judge Qwen/Qwen3-0.6B --out run/graded",
            ("sweep.json",),
            Kind.STAGE,
        ),
        "compare": Verb(
            CompareConfig,
            "posgap.stages.compare:compare",
            "run/base run/after --out run/comparison",
            ("comparison.json",),
            Kind.STAGE,
        ),
        "check": Verb(
            CheckConfig,
            "posgap.workflows.check:check",
            "--model Qwen/Qwen3-0.6B --task kv --max-gap 10 --out run/check",
        ),
    },
    "Close the gap by training": {
        "teacher": Verb(
            TeacherConfig,
            "posgap.stages.teacher:teacher",
            "--model Qwen/Qwen3-0.6B --examples run/train --sweep run/base --out run/responses",
            ("teacher.json",),
            Kind.STAGE,
        ),
        "distill": Verb(
            DistillConfig,
            "posgap.stages.distill:distill",
            "--model Qwen/Qwen3-0.6B --examples run/train --responses run/responses --out run/candidate",
            ("manifest.json",),
            Kind.STAGE,
        ),
        "train-job": Verb(
            TrainJobConfig,
            "posgap.stages.train_job:train_job",
            "--model s3://bucket/model --examples s3://bucket/train --responses s3://bucket/responses "
            "--work s3://bucket/work --out s3://bucket/candidate",
            ("manifest.json",),
            Kind.STAGE_WITH_CHECKS,
        ),
    },
    "Close the gap without training": {
        "mitigate": Verb(
            MitigateConfig,
            "posgap.stages.mitigate:mitigate",
            "--model Qwen/Qwen3-0.6B --examples run/eval --task kv --budget 30m --out run/mitigate",
            ("mitigate.json",),
            Kind.STAGE,
        ),
        "apply": Verb(
            ApplyConfig,
            "posgap.stages.apply:apply",
            "--model Qwen/Qwen3-0.6B --found run/mitigate --out run/mitigated",
            ("mitigation.json", "scaling.json"),
            Kind.STAGE,
        ),
        "scale search": Verb(
            ScaleSearchConfig,
            "posgap.stages.scale_search:scale_search",
            "--model Qwen/Qwen3-0.6B --examples search.jsonl.gz --exclude run/eval --out run/scaling",
            ("scaling.json",),
            Kind.STAGE,
        ),
    },
    "Explain": {
        "diagnose": Verb(
            DiagnoseConfig,
            "posgap.stages.diagnose:diagnose",
            "--sweep run/base --examples run/eval --model Qwen/Qwen3-0.6B --out run/why",
            ("diagnosis.json",),
            Kind.STAGE,
        ),
        "rollout predict": Verb(
            RolloutPredictConfig,
            "posgap.stages.rollout_predict:rollout_predict",
            "--encoding rope --layers 12 --out run/prediction",
            ("prediction.json",),
            Kind.STAGE,
        ),
        "rollout measure": Verb(
            RolloutMeasureConfig,
            "posgap.stages.rollout_measure:rollout_measure",
            "--model Qwen/Qwen3-0.6B --texts texts.jsonl --out run/measurement",
            ("measurement.json",),
            Kind.STAGE,
        ),
        "rollout advise": Verb(
            RolloutAdviseConfig,
            "posgap.stages.rollout_advise:rollout_advise",
            "--model Qwen/Qwen3-0.6B --examples run/eval --out run/advice",
            ("advice.json",),
            Kind.STAGE,
        ),
        "rollout experiment": Verb(
            RolloutExperimentConfig,
            "posgap.stages.rollout_experiment:rollout_experiment",
            "--preset quick --out run/experiment",
            ("experiment.json",),
            Kind.STAGE,
        ),
    },
    "Operate": {
        "preflight": Verb(
            PreflightConfig,
            "posgap.stages.preflight:preflight",
            "--base-model Qwen/Qwen3-0.6B --data-eval eval.jsonl.gz --data-train train.jsonl.gz --out run/preflight",
            ("preflight.json",),
            Kind.STAGE_WITH_CHECKS,
        ),
        "gate": Verb(
            GateConfig,
            "posgap.workflows.admission:gate",
            "--candidate run/after --base run/base --name my-model --out run/gate",
            ("gate.json",),
            Kind.STAGE_WITH_CHECKS,
        ),
        "policy": Verb(PolicyConfig, "posgap.gating.policy:policy", "my-model policy.yaml"),
        "promote": Verb(
            PromoteConfig,
            "posgap.workflows.admission:promote",
            "--model run/candidate --sweep run/after --gate run/gate --name my-model --out run/promotion",
            ("promotion.json",),
            Kind.STAGE_WITH_CHECKS,
        ),
        "approve": Verb(ApproveConfig, "posgap.tracking.promotion:approve", "my-model 3"),
        "rollback": Verb(RollbackConfig, "posgap.tracking.history:rollback", 'my-model --reason "answers in French"'),
        "history": Verb(HistoryConfig, "posgap.tracking.history:show", "my-model"),
        "champion": Verb(
            ChampionConfig,
            "posgap.workflows.champion_sweep:champion",
            "--name my-model --examples run/eval --out run/champion",
            ("champion.json",),
            Kind.STAGE,
        ),
        "watch": Verb(
            WatchConfig,
            "posgap.workflows.watching:watch",
            "--champion run/champion --out run/watch",
            ("watch.json",),
            Kind.STAGE_WITH_CHECKS,
        ),
        "report": Verb(
            ReportConfig,
            "posgap.stages.report:report",
            "--state SUCCEEDED --out run/report",
            ("report.json",),
            Kind.STAGE_WITH_CHECKS,
        ),
        "pipeline compile": Verb(
            PipelineCompileConfig, "posgap.pipelines.uploading:compile_pipeline", "--out pipeline.yaml"
        ),
        "pipeline run": Verb(PipelineRunConfig, "posgap.pipelines.local:run", "--smoke --out run/pipeline"),
        "pipeline submit": Verb(
            PipelineSubmitConfig,
            "posgap.pipelines.submission:submit",
            "--host http://localhost:8080 --param model=Qwen/Qwen3-0.6B --wait",
        ),
        "pipeline lint": Verb(PipelineLintConfig, "posgap.pipelines.lint:lint", "--smoke"),
        "pipeline schedule": Verb(ScheduleConfig, "posgap.pipelines.schedules:schedule", 'weekly --cron "0 6 * * mon"'),
        "push": Verb(
            HubPushConfig,
            "posgap.peers.hub:push",
            "run/after --model run/candidate --to someone/model --dry-run",
        ),
        "verify": Verb(VerifyConfig, "posgap.gating.replay:verify", "run/after"),
        "sync": Verb(SyncConfig, "posgap.tracking.sync:sync", "run"),
        "gc": Verb(GcConfig, "posgap.tracking.garbage:collect", "--older-than 48"),
    },
    "Set up": {
        "demo": Verb(DemoConfig, "posgap.demo.run:demo", "--smoke --out run/demo"),
        "init": Verb(
            InitConfig, "posgap.cli.init:init", "--model Qwen/Qwen3-0.6B --examples made --task kv --tracking none"
        ),
        "doctor": Verb(DoctorConfig, "posgap.cli.doctor:doctor", ""),
        "config": Verb(ConfigFileConfig, "posgap.cli.config_file:show", "sweep"),
    },
}
VERBS = {words: verb for section in SECTIONS.values() for words, verb in section.items()}
GROUPS = {
    "data": "Fetch, import or make examples, and say or pick which version of them is taken.",
    "plan": "How many examples, how much memory and how many hours it takes.",
    "scale": "Search RoPE factors for a model, which `posgap apply` puts in force.",
    "rollout": "Why a model is biased: what of each position reaches the last token.",
    "pipeline": "The Kubeflow pipeline: compile, run here or on a cluster, schedule, check.",
}
# What is typed for each stage, by the name that it has as a KFP component.
TYPED = {
    words.replace(" ", "_").replace("-", "_"): words
    for words, verb in VERBS.items()
    if verb.kind in (Kind.STAGE, Kind.STAGE_WITH_CHECKS)
}
STAGES = {stage: VERBS[words] for stage, words in TYPED.items()}
