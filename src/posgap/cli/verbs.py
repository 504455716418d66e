"""All verbs: what is typed for each, its options, its work, an example, and the heading under which help lists it."""

from enum import Enum
from typing import NamedTuple

from posgap.cli.config import DoctorConfig
from posgap.data.config import DataVersionConfig, ImportConfig, MakeConfig, ValidateConfig
from posgap.demo.config import DemoConfig
from posgap.distillation.config import DistillConfig, PlanDistillConfig, TeacherConfig, TrainJobConfig
from posgap.foundation.config import Config
from posgap.gating.config import CheckConfig, GateConfig, PlanGateConfig, PolicyConfig, VerifyConfig
from posgap.measurement.config import CompareConfig, MergeConfig, PlanConfig, SweepConfig
from posgap.mitigation_search.config import ApplyConfig, MitigateConfig
from posgap.pipelines.config import (
    PipelineCompileConfig,
    PipelineRunConfig,
    PipelineSubmitConfig,
    ScheduleConfig,
)
from posgap.preflight.config import PreflightConfig
from posgap.rollout.config import RolloutExperimentConfig, RolloutMeasureConfig, RolloutPredictConfig
from posgap.scaling.config import ScaleSearchConfig
from posgap.tracking.config import ApproveConfig, PromoteConfig, ReportConfig, RollbackConfig
from posgap.workflows.config import ChampionConfig, SweepVerbConfig, ViewConfig, WatchConfig


class Kind(Enum):
    """The kind of a verb, beside a command."""

    COMMAND = "nothing else"
    STAGE = "a stage, and no more: whether its output is complete is seen before the stage's module is imported"
    NEEDS_MODEL = "no stage, but its work imports torch: what it reads is looked for before"
    STAGE_WITH_CHECKS = "a stage whose verb asks first what goes before it, or about its output"


class Verb(NamedTuple):
    """A verb: its options are the config's fields, its help is the config's docstring."""

    config: type[Config]
    example: str  # what follows the verb in a command that works
    results: tuple[str, ...] = ()  # files of its folder; `--json` prints the first that is there; none: what it shows
    kind: Kind = Kind.COMMAND
    work: str = ""  # "module:function", imported when it runs; empty: the stage of the verb's name, filled in below
    stage_config: type[Config] | None = None  # of the stage, where the verb leaves more open; None: the same


# What `posgap --help` lists, and in how few words; the rest is under `--help-all`, what only pipelines run last.
FIRST = {
    "sweep": "measure accuracy at every position, and the gap",
    "check": "sweep a model and judge it, for CI",
    "compare": "say how sweeps differ, with intervals",
    "mitigate": "find what closes the gap without training",
    "distill": "train the gap away (Pos2Distill)",
    "gate": "decide whether a model may be released",
    "promote": "register a model that was admitted",
    "rollout": "explain why a model is biased",
    "pipeline": "run it all on Kubeflow, on a schedule if wanted",
}
# Each heading of `posgap --help-all` with its verbs, by what is typed for them.
SECTIONS: dict[str, dict[str, Verb]] = {
    "Measure": {
        "data make": Verb(MakeConfig, "kv --n-examples 40 --out made.jsonl.gz", work="posgap.data.verbs:make"),
        "data import": Verb(
            ImportConfig,
            "--format litm-kv --input made.jsonl.gz --out kv.jsonl.gz",
            work="posgap.data.verbs:import_examples",
        ),
        "data version": Verb(
            DataVersionConfig,
            "s3://bucket/data/train-",
            ("version.json",),
            Kind.STAGE_WITH_CHECKS,
            work="posgap.stages.data_version:find_version",
        ),
        "validate": Verb(
            ValidateConfig,
            "--model Qwen/Qwen3-0.6B --examples kv.jsonl.gz --out run/eval",
            ("validation.json",),
            Kind.STAGE,
        ),
        "plan sweep": Verb(PlanConfig, "--detect 3", work="posgap.measurement.power:plan"),
        "plan gate": Verb(PlanGateConfig, "--max-gap 10 --n-docs 5", work="posgap.gating.planning:plan_gate"),
        "plan distill": Verb(
            PlanDistillConfig,
            "--model Qwen/Qwen3-0.6B --gpus 4 --gpu-memory 80",
            kind=Kind.NEEDS_MODEL,
            work="posgap.distillation.planning:plan_distill",
        ),
        "sweep": Verb(
            SweepVerbConfig,
            "--task kv --model Qwen/Qwen3-0.6B --examples kv.jsonl.gz --out run/base",
            ("sweep.json", "lengths.json"),
            Kind.STAGE_WITH_CHECKS,
            work="posgap.workflows.first_look:sweep_or_first_look",
            stage_config=SweepConfig,
        ),
        "view": Verb(ViewConfig, "runs", work="posgap.workflows.viewing:view"),
        "compare": Verb(CompareConfig, "run/base run/after --out run/comparison", ("comparison.json",), Kind.STAGE),
        "check": Verb(
            CheckConfig,
            "--model Qwen/Qwen3-0.6B --task kv --max-gap 10 --out run/check",
            work="posgap.workflows.check:check",
        ),
    },
    "Close the gap by training": {
        "teacher": Verb(
            TeacherConfig,
            "--model Qwen/Qwen3-0.6B --examples run/train --sweep run/base --out run/responses",
            ("teacher.json",),
            Kind.STAGE,
        ),
        "distill": Verb(
            DistillConfig,
            "--model Qwen/Qwen3-0.6B --examples run/train --responses run/responses --out run/candidate",
            ("manifest.json",),
            Kind.STAGE,
        ),
    },
    "Close the gap without training": {
        "mitigate": Verb(
            MitigateConfig,
            "--model Qwen/Qwen3-0.6B --examples run/eval --task kv --budget 30m --out run/mitigate",
            ("mitigate.json",),
            Kind.STAGE,
        ),
        "apply": Verb(
            ApplyConfig,
            "--model Qwen/Qwen3-0.6B --found run/mitigate --out run/mitigated",
            ("mitigation.json", "scaling.json"),
            Kind.STAGE,
        ),
        "scale search": Verb(
            ScaleSearchConfig,
            "--model Qwen/Qwen3-0.6B --examples search.jsonl.gz --exclude run/eval --out run/scaling",
            ("scaling.json",),
            Kind.STAGE,
        ),
    },
    "Explain": {
        "rollout predict": Verb(
            RolloutPredictConfig, "--encoding rope --layers 12 --out run/prediction", ("prediction.json",), Kind.STAGE
        ),
        "rollout measure": Verb(
            RolloutMeasureConfig,
            "--model Qwen/Qwen3-0.6B --texts texts.jsonl --out run/measurement",
            ("measurement.json",),
            Kind.STAGE,
        ),
        "rollout experiment": Verb(
            RolloutExperimentConfig, "--preset quick --out run/experiment", ("experiment.json",), Kind.STAGE
        ),
    },
    "Operate": {
        "gate": Verb(
            GateConfig,
            "--candidate run/after --base run/base --name my-model --out run/gate",
            ("gate.json",),
            Kind.STAGE_WITH_CHECKS,
            work="posgap.workflows.admission:gate",
        ),
        "policy": Verb(PolicyConfig, "my-model policy.yaml", work="posgap.gating.policy:policy"),
        "promote": Verb(
            PromoteConfig,
            "--model run/candidate --sweep run/after --gate run/gate --name my-model --out run/promotion",
            ("promotion.json",),
            Kind.STAGE_WITH_CHECKS,
            work="posgap.workflows.admission:promote",
        ),
        "approve": Verb(ApproveConfig, "my-model 3", work="posgap.tracking.promotion:approve"),
        "rollback": Verb(
            RollbackConfig, 'my-model --reason "answers in French"', work="posgap.tracking.history:rollback"
        ),
        "pipeline compile": Verb(
            PipelineCompileConfig, "--out pipeline.yaml", work="posgap.pipelines.uploading:compile_pipeline"
        ),
        "pipeline run": Verb(PipelineRunConfig, "--smoke --out run/pipeline", work="posgap.pipelines.local:run"),
        "pipeline submit": Verb(
            PipelineSubmitConfig,
            "--host http://localhost:8080 --param model=Qwen/Qwen3-0.6B --wait",
            work="posgap.pipelines.submission:submit",
        ),
        "pipeline schedule": Verb(
            ScheduleConfig, 'weekly --cron "0 6 * * mon"', work="posgap.pipelines.schedules:schedule"
        ),
        "verify": Verb(VerifyConfig, "run/after", work="posgap.gating.replay:verify"),
    },
    "Set up": {
        "demo": Verb(DemoConfig, "--smoke --out run/demo", work="posgap.demo.run:demo"),
        "doctor": Verb(DoctorConfig, "", work="posgap.cli.doctor:doctor"),
    },
    "Steps of pipelines": {
        "preflight": Verb(
            PreflightConfig,
            "--base-model Qwen/Qwen3-0.6B --data-eval eval.jsonl.gz --data-train train.jsonl.gz --out run/preflight",
            ("preflight.json",),
            Kind.STAGE,
        ),
        "merge": Verb(MergeConfig, "run/shard-1 run/shard-2 --out run/base", ("sweep.json",), Kind.STAGE),
        "train-job": Verb(
            TrainJobConfig,
            "--model s3://bucket/model --examples s3://bucket/train --responses s3://bucket/responses "
            "--work s3://bucket/work --out s3://bucket/candidate",
            ("manifest.json",),
            Kind.STAGE_WITH_CHECKS,
        ),
        "champion": Verb(
            ChampionConfig,
            "--name my-model --examples run/eval --out run/champion",
            ("champion.json",),
            Kind.STAGE,
            work="posgap.workflows.champion_sweep:champion",
        ),
        "watch": Verb(
            WatchConfig,
            "--champion run/champion --out run/watch",
            ("watch.json",),
            Kind.STAGE_WITH_CHECKS,
            work="posgap.workflows.watching:watch",
        ),
        "report": Verb(ReportConfig, "--state SUCCEEDED --out run/report", ("report.json",), Kind.STAGE),
    },
}


def _component(words: str) -> str:
    """The name that a verb's stage has as a KFP component."""
    return words.replace(" ", "_").replace("-", "_")


VERBS: dict[str, Verb] = {}
for _verbs in SECTIONS.values():
    for _words, _verb in _verbs.items():
        _name = _component(_words)
        VERBS[_words] = _verb if _verb.work else _verb._replace(work=f"posgap.stages.{_name}:{_name}")
GROUPS = {
    "data": "Fetch, import or make examples, and say or pick which version of them is taken.",
    "plan": "How many examples, how much memory and how many hours it takes.",
    "scale": "Search RoPE factors for a model, which `posgap apply` puts in force.",
    "rollout": "Why a model is biased: what of each position reaches the last token.",
    "pipeline": "The Kubeflow pipeline: compile, run here or on a cluster, schedule, check.",
}
# What is typed for each stage, by the name of its KFP component.
TYPED = {_component(words): words for words, verb in VERBS.items() if verb.kind in (Kind.STAGE, Kind.STAGE_WITH_CHECKS)}
STAGES = {
    stage: VERBS[words]._replace(config=VERBS[words].stage_config or VERBS[words].config)
    for stage, words in TYPED.items()
}
