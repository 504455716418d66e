"""Every parameter of every stage, with its default, once.

CLI options, MLproject parameters, KFP parameters and MLflow params are all read off these models.
Nothing here imports torch.
"""

import json
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator
from pydantic.fields import FieldInfo

from posgap.locations import Location, as_location, is_uri, split_uri
from posgap.tasks.placements import parse_positions, parse_shard
from posgap.tasks.sources import SOURCES

TASKS = ("kv", "qa", "multihop-cot", "multihop-coc")
TASK_NAMES = f"{', '.join(TASKS[:-1])} or {TASKS[-1]}"


class Role(Enum):
    """What a path is to its stage."""

    INPUT = "input"
    PLACE = "place"  # which the stage looks at itself, and does not read
    OUTPUT = "output"
    WORK = "work"


POSITIONAL = "positional"  # marks a field that the command line takes by its place, without a name


def _unset_if_empty(value: Any) -> Any:
    # KFP and MLproject have no null: an empty string is a path that was not given.
    return None if value == "" else value


def _location_if_any(value: Any) -> Any:
    return as_location(_unset_if_empty(value))


def _model(value: Any) -> Any:
    return as_location(value) if str(value).startswith("s3:/") else value


def _on_this_machine(location: Location | None) -> Location | None:
    if is_uri(location):
        raise ValueError("must be on this machine, not in S3")
    return location


def _in_s3(location: Location) -> Location:
    if not is_uri(location):
        raise ValueError("must be in S3, like s3://bucket/work: the machines of the job share no disk")
    return location


def _below_bucket(location: Location) -> Location:
    if is_uri(location) and not split_uri(location)[1]:
        raise ValueError("names a bucket alone: write s3://bucket/folder")
    return location


def _split_commas(value: Any) -> Any:
    if isinstance(value, str):
        return [part for part in value.replace(",", " ").split()]
    return value


def _paths(value: Any) -> Any:
    # A command line gives them one by one, MLproject in one text with commas.
    given = [value] if isinstance(value, str | Path) else value
    return [path for each in given for path in str(each).split(",") if path]


def _json(value: Any) -> Any:
    # A command line and MLproject give lists and dictionaries as JSON text.
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value or "null")
    except ValueError:
        raise ValueError("write JSON") from None


def _as_text(value: Any) -> Any:
    # KFP's lists hold numbers, and whole ones come as floats.
    return f"{value:g}" if isinstance(value, int | float) else value


def _pairs(value: Any) -> Any:
    # A command line gives NAME=VALUE one by one.
    if isinstance(value, dict):
        return value
    pairs = [each.partition("=") for each in value]
    for name, equals, text in pairs:
        if not name or not equals:
            raise ValueError(f"write NAME=VALUE, not {name + equals + text!r}")
    return {name: text for name, _, text in pairs}


def _placement(text: str) -> str:
    parse_positions(text)
    return text


def _placement_if_any(text: str) -> str:
    return _placement(text) if text else text


def _shard(text: str) -> str:
    if text:
        parse_shard(text)
    return text


def _known_task(name: str) -> str:
    if name not in TASKS:
        raise ValueError(f"unknown task {name!r}: choose {TASK_NAMES}")
    return name


def _known_task_if_any(name: str) -> str:
    return _known_task(name) if name else name


# Paths may be URIs of S3. A stage's work sees them as paths of this machine, but for work folders; so does the type
# checker, and what comes before that work asks `is_uri`.
if TYPE_CHECKING:
    Local = Path
else:
    Local = Location
InputPath = Annotated[Local, Role.INPUT, BeforeValidator(as_location)]
OptionalInputPath = Annotated[Local | None, Role.INPUT, BeforeValidator(_location_if_any)]
InputPaths = Annotated[list[Annotated[Local, BeforeValidator(as_location)]], Role.INPUT, BeforeValidator(_paths)]
ModelPath = Annotated[str, Role.INPUT, BeforeValidator(_model)]  # a Hugging Face folder, or a name on the hub
Place = Annotated[str, Role.PLACE]
OutputPath = Annotated[Local, Role.OUTPUT, BeforeValidator(as_location), AfterValidator(_below_bucket)]
WorkPath = Annotated[Location | None, Role.WORK, BeforeValidator(_location_if_any)]  # changes no result
OnThisMachine = AfterValidator(_on_this_machine)
TaskName = Annotated[str, AfterValidator(_known_task)]
PlacementText = Annotated[str, BeforeValidator(_as_text), AfterValidator(_placement)]
OptionalPlacementText = Annotated[str, BeforeValidator(_as_text), AfterValidator(_placement_if_any)]
QuestionPlace = Literal["after", "before", "both"]
Placements = Annotated[list[PlacementText], BeforeValidator(_split_commas)]
Shard = Annotated[str, AfterValidator(_shard)]
Arguments = Annotated[dict[str, str], BeforeValidator(_pairs)]


def role(field: FieldInfo) -> Role | None:
    """Whether a config field is an input path, a place, the output path, a work folder, or (None) a plain parameter."""
    return next((m for m in field.metadata if isinstance(m, Role)), None)


class Config(BaseModel):
    """The base of every verb's config."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @classmethod
    def default(cls, name: str) -> Any:
        """The default of one parameter, for those who must repeat it (KFP, MLproject)."""
        return cls.model_fields[name].get_default(call_default_factory=True)

    @classmethod
    def parameters(cls) -> dict[str, FieldInfo]:
        """The plain parameters: neither paths nor `force`."""
        return {n: f for n, f in cls.model_fields.items() if role(f) is None and n != "force"}


class StageConfig(Config):
    out: OutputPath = Field(description="folder to write")
    seed: int = Field(0, description="seed of everything random in this stage")
    force: bool = Field(False, description="run again even where the output is complete")


_QUESTION = "where a prompt asks: after, before, or both sides of the documents"
_SHUFFLE = "seed that shuffles an example's distractors, alike at every placement; 0: the file's order"


class PromptConfig(StageConfig):
    examples: InputPath = Field(description="examples, .jsonl or .jsonl.gz, or the folder `validate` wrote")
    model: ModelPath = Field(description="Hugging Face model folder or hub name")
    task: TaskName = Field("kv", description=f"how prompts are worded: {TASK_NAMES}")
    n_docs: int = Field(20, ge=1, description="documents in a prompt")
    max_new_tokens: int = Field(0, ge=0, description="longest response in tokens; 0: the task's own")
    question: QuestionPlace = Field("after", description=_QUESTION)
    shuffle: int = Field(0, ge=0, description=_SHUFFLE)


class GenerationConfig(PromptConfig):
    metric: str = Field("", pattern="^(em|sub_em|f1|)$", description="em, sub_em or f1; empty: the task's own")
    dtype: Literal["auto", "float32", "bfloat16"] = Field("auto", description="auto: bfloat16 on a GPU, else float32")
    batch_tokens: int = Field(32768, ge=1, description="transformers: tokens held at once, padding included")


class BackendConfig(GenerationConfig):
    backend: Literal["transformers", "vllm", "openai"] = Field(
        "transformers",
        description="what generates; openai: any endpoint that speaks its protocol, with the key in OPENAI_API_KEY",
    )
    processes: int = Field(0, ge=0, description="transformers: processes that share the examples; 0: one a GPU, or one")


class ValidateConfig(PromptConfig):
    """Checks examples with Great Expectations before anything is spent on them."""

    exclude: OptionalInputPath = Field(None, description="examples that must not occur among these (training set)")


class TeacherConfig(BackendConfig):
    """Samples the model's own responses with the gold documents where it answers best."""

    backend: Literal["transformers", "vllm"] = Field("transformers", description="what generates")
    sweep: OptionalInputPath = Field(None, description="sweep of this model, from which the best placement is read")
    advantageous: OptionalPlacementText = Field(
        "", description="where the gold stands, like 1, or 19+20 for two documents; empty: the best of `sweep`"
    )
    temperature: float = Field(0.0, ge=0, description="sampling temperature; 0: greedy")
    keep_incorrect: bool = Field(False, description="keep responses that do not hold an accepted answer")


class DistillConfig(StageConfig):
    """Pos2Distill: the model's answers at its best position, distilled into the others."""

    examples: InputPath = Field(description="examples the responses answer")
    responses: InputPath = Field(description="folder `teacher` wrote")
    model: ModelPath = Field(description="Hugging Face model folder or hub name: teacher and starting point")
    task: TaskName = Field("kv", description=f"how prompts are worded: {TASK_NAMES}")
    question: QuestionPlace = Field("after", description=_QUESTION)
    shuffle: int = Field(0, ge=0, description=_SHUFFLE)
    method: Literal["r1", "r2", "sft", "seqkd"] = Field(
        "r1",
        description="r1: KL to the teacher's distributions, for retrieval; r2: cross-entropy on its chains of thought, "
        "for two-hop reasoning; baselines: seqkd, cross-entropy on its responses; sft, on gold answers",
    )
    alignment: Literal["none", "paper", "balanced"] = Field(
        "paper", description="r1: how placements are weighed against each other; none: equally"
    )
    anchoring: float = Field(1.0, ge=0, description="r1: weight of the anchoring loss (lambda)")
    k: int = Field(4, ge=0, description="placements drawn per example and epoch (K)")
    epochs: int = Field(2, ge=1, description="passes over the examples")
    batch_size: int = Field(32, ge=1, description="examples per optimizer step, over all processes")
    micro_batch_size: int = Field(0, ge=0, description="prompts a process reads at once; 0: all of its step's")
    learning_rate: float = Field(3e-6, gt=0, description="peak learning rate of AdamW")
    warmup_steps: int = Field(0, ge=0, description="steps of linear warm-up; linear decay to 0 follows")
    max_grad_norm: float = Field(1.0, gt=0, description="gradient norm is clipped to this")
    lora_rank: int = Field(0, ge=0, description="rank of LoRA adapters, merged on export; 0: train all parameters")
    lora_alpha: int = Field(16, ge=1, description="scale of LoRA adapters: their product times alpha / rank")
    dtype: Literal["auto", "float32", "bfloat16"] = Field("auto", description="auto: bfloat16 on a GPU, else float32")
    gradient_checkpointing: bool = Field(False, description="compute activations again rather than keep them")
    deepspeed: str = Field("", description="zero2, zero3 or a DeepSpeed JSON file; empty: none")
    save_steps: int = Field(10, ge=0, description="steps between checkpoints; 0: none but at SIGTERM")
    work: WorkPath = Field(
        None, description="folder for checkpoints and teacher states, reused by later runs; empty: beside `out`"
    )


class TrainJobConfig(DistillConfig):
    """`distill` on several machines of a Kubernetes cluster, as a TrainJob that is followed to its end."""

    work: Annotated[Location, Role.WORK, BeforeValidator(as_location), AfterValidator(_in_s3)] = Field(
        description="folder in S3 that the machines share, s3://bucket/work: checkpoints and teacher states, and what "
        "is on its way to them and back"
    )
    deepspeed: str = Field("zero3", pattern="^(zero2|zero3|)$", description="zero2 or zero3; empty: none")
    nodes: int = Field(1, ge=1, description="machines")
    gpus_per_node: int = Field(1, ge=1, description="GPUs, and processes, of each machine")
    cpus_per_node: int = Field(0, ge=0, description="CPU cores of each machine; 0: as the runtime has them")
    memory_per_node: str = Field(
        "",
        pattern="^([0-9]+[KMGT]i?)?$",
        description="memory of each machine, like 256Gi; empty: as the runtime has it",
    )
    runtime: str = Field("posgap-deepspeed", min_length=1, description="training runtime of Kubeflow Trainer")
    image: str = Field("", description="container image; empty: the runtime's")
    queue: str = Field("posgap-gpu", description="Kueue's local queue; empty: none")
    namespace: str = Field("", description="Kubernetes namespace; empty: that of this pod, or of the kubeconfig")
    timeout: int = Field(86400, ge=60, description="seconds after which the job is given up, waiting for GPUs included")


class ScaleSearchConfig(GenerationConfig):
    """Searches RoPE factors, one per layer, that close the gap without training (LPES)."""

    exclude: OptionalInputPath = Field(None, description="evaluation examples; refused where one is searched on")
    positions: Placements = Field([], description="positions to score, separated by commas; empty: all")
    limit: int = Field(0, ge=0, description="use the first so many examples; 0: all")
    strategy: Literal["genetic", "cma", "ms_poe"] = Field(
        "genetic", description="genetic algorithm; to compare, CMA-ES, or Ms-PoE's per-head factors without a search"
    )
    curve: Literal["bezier", "linear", "step", "free", "uniform"] = Field("bezier", description="factors over depth")
    order: int = Field(3, ge=0, description="bezier, step: control points less one; 3 is the cubic Bezier")
    low: float = Field(1.0, gt=0, description="lowest factor")
    high: float = Field(2.0, description="highest factor")
    monotone: Literal["none", "increasing", "decreasing"] = Field("none", description="order of factors over depth")
    population: int = Field(16, ge=2, description="candidates in a generation")
    generations: int = Field(10, ge=1, description="most generations")
    patience: int = Field(4, ge=0, description="stop after so many without improvement; 0: never")
    elite: int = Field(2, ge=0, description="genetic: candidates that survive a generation")
    tournament: int = Field(3, ge=1, description="genetic: candidates that compete to be a parent")
    mutation: float = Field(0.25, gt=0, description="genetic: how far a control point moves at most")
    mutation_rate: float = Field(0.5, ge=0, le=1, description="genetic: share of control points that move")
    objective: Literal["mean", "worst", "mean_minus_gap"] = Field("mean", description="what is maximised")
    weights: Literal["middle", "uniform"] = Field(
        "middle", description="positions in the mean; middle: twice the ends'"
    )
    evaluation: Literal["auto", "teacher_forced", "generation"] = Field(
        "auto", description="auto: teacher_forced where each question has one right response"
    )
    halving: bool = Field(False, description="drop weak candidates after a quarter and half of the examples")

    @field_validator("high")
    @classmethod
    def _above_low(cls, high: float, info: ValidationInfo) -> float:
        if high < info.data.get("low", high):
            raise ValueError(f"the highest factor must not be below the lowest, {info.data['low']:g}")
        return high

    @field_validator("elite")
    @classmethod
    def _below_population(cls, elite: int, info: ValidationInfo) -> int:
        if elite >= info.data.get("population", elite + 1):
            raise ValueError(f"must be less than the population, {info.data['population']}")
        return elite


class ScaleApplyConfig(StageConfig):
    """Writes a model folder that loads scaled: the same parameters, the factors in its config."""

    model: ModelPath = Field(description="Hugging Face folder or hub name of the model the scaling was searched for")
    scaling: InputPath = Field(description="folder `scale search` wrote")


class ScaleTransferConfig(StageConfig):
    """Sweeps a model unscaled and scaled elsewhere, and says where the scaling carries over."""

    targets: Annotated[list[str], POSITIONAL] = Field(
        min_length=1, description="where to: EXAMPLES, at the task and length of the search, or TASK:N_DOCS:EXAMPLES"
    )
    model: ModelPath = Field(description="Hugging Face folder or hub name of the model the scaling was searched for")
    scaling: InputPath = Field(description="folder `scale search` wrote")
    n_positions: int = Field(0, ge=0, description="positions a sweep asks, evenly spaced; 0: all")
    limit: int = Field(0, ge=0, description="use the first so many examples; 0: all")
    dtype: Literal["auto", "float32", "bfloat16"] = Field("auto", description="auto: bfloat16 on a GPU, else float32")
    batch_tokens: int = Field(32768, ge=1, description="transformers: tokens held at once, padding included")
    resamples: int = Field(2000, ge=100, description="bootstrap resamples of the examples")


class SweepConfig(BackendConfig):
    """Accuracy with the gold documents at every position, and the gap between best and worst."""

    model: ModelPath = Field(
        description="Hugging Face model folder or hub name; openai: what the endpoint calls the model"
    )
    base_url: str = Field("", description="openai: address of the endpoint, like http://localhost:8000/v1")
    endpoint: Literal["chat", "completions"] = Field(
        "chat",
        description="openai: chat, with the model's chat template; completions, of the bare prompt (base models)",
    )
    concurrency: int = Field(8, ge=1, description="openai: requests under way at once")
    timeout: float = Field(120.0, gt=0, description="openai: seconds to wait for a response")
    retries: int = Field(8, ge=0, description="openai: times a request is tried again before the sweep gives up")
    positions: Placements = Field(
        [], description="placements like 1,5,10, or 1+2,19+20 for two documents; empty: all, or pairs of every category"
    )
    shard: Shard = Field("", description="sweep one part of the placements: 2/4 is the second of four; empty: all")
    limit: int = Field(0, ge=0, description="use the first so many examples; 0: all")
    label: str = Field("", description="what plots and tables call this model; empty: the method that made it")
    resamples: int = Field(2000, ge=100, description="bootstrap resamples of the examples")


class MergeConfig(StageConfig):
    """Makes one sweep of its parts: the same as if no part had been swept apart."""

    sweeps: Annotated[InputPaths, POSITIONAL] = Field(
        min_length=1, description="sweeps of one model on the same examples, each of other placements"
    )


class PlanConfig(Config):
    """How many examples a sweep needs to see a gap, or a difference between models, of so many points."""

    detect: float = Field(3.0, gt=0, le=100, description="points to be seen")
    sweep: OptionalInputPath = Field(
        None, description="sweep from which placements, mean and correlation are taken; empty: the options below"
    )
    n_docs: int = Field(20, ge=2, description="placements swept")
    mean: float = Field(70.0, gt=0, lt=100, description="expected mean accuracy")
    correlation: float = Field(
        0.5, ge=0, lt=1, description="of an example's outcomes at two placements: how much is the example's difficulty"
    )
    agreement: float = Field(
        0.8, ge=0, le=1, description="of two models about which examples are hard; 1: they find the same ones hard"
    )
    power: float = Field(0.8, gt=0.05, lt=1, description="how often it is to be seen where it is there")


class CompareConfig(StageConfig):
    """Paired differences between sweeps of the same examples: every model minus the first."""

    sweeps: Annotated[InputPaths, POSITIONAL] = Field(min_length=2, description="sweeps, the reference first")
    resamples: int = Field(2000, ge=100, description="bootstrap resamples of the examples")


class DiagnoseConfig(StageConfig):
    """Why a swept model errs: the tokens its answers turn at, and where its attention goes."""

    sweep: InputPath = Field(description="folder `sweep` wrote")
    examples: InputPath = Field(description="examples that were swept")
    model: ModelPath = Field(description="model that was swept")
    tokens: int = Field(64, ge=0, description="wrong answers diagnosed token by token; 0: none")
    attention: int = Field(8, ge=0, description="examples whose attention is measured at every placement; 0: none")
    dtype: Literal["auto", "float32", "bfloat16"] = Field("auto", description="auto: bfloat16 on a GPU, else float32")
    batch_tokens: int = Field(32768, ge=1, description="tokens read at once, padding included")


class GateConfig(StageConfig):
    """Decides whether a model may enter the registry. Exit code 3 where it may not."""

    candidate: InputPath = Field(description="sweep of the model that asks to be admitted")
    base: InputPath = Field(description="sweep of the model it was made from")
    champion: OptionalInputPath = Field(None, description="sweep of the current champion; empty: the base")
    max_gap: float = Field(10.0, ge=0, le=100, description="highest gap in points that the gap's interval may reach")
    mean_tolerance: float = Field(1.0, ge=0, description="points of mean the candidate may lose to the champion")
    advantageous_tolerance: float = Field(
        3.0, ge=0, description="points it may lose to the base where the base answers best"
    )
    resamples: int = Field(2000, ge=100, description="bootstrap resamples of the examples")


class PromoteConfig(StageConfig):
    """Registers a model that passed the gate and makes it the champion."""

    model: ModelPath = Field(description="Hugging Face folder of the candidate")
    gate: InputPath = Field(description="folder `gate` wrote")
    sweep: InputPath = Field(description="sweep of the candidate")
    name: str = Field("posgap", min_length=1, description="registered model")


class DataVersionConfig(StageConfig):
    """Picks the newest data version, and says whether data or base model changed since the champion was made."""

    data: Place = Field(
        min_length=1,
        description="where data versions begin, like s3://bucket/data/ or s3://bucket/data/train-; or the data itself",
    )
    model: Place = Field(min_length=1, description="base model: Hugging Face folder, s3:// URI or hub name")
    name: str = Field("posgap", min_length=1, description="registered model whose champion is compared")
    only_new: bool = Field(True, description="skip where neither changed; false: take the newest anyway")
    force: bool = Field(True, description="run again even where the output is complete: the champion may be another")


METHODS = ("r1", "r2", "sft", "seqkd", "lpes")
Values = Annotated[dict[str, Any], BeforeValidator(_json)]


class PoolConfig(Config):
    """One kind of nodes, and what a step asks of them."""

    nodes: dict[str, str] = Field(description="labels of the nodes; empty: any node")
    tolerations: list[dict[str, str | int]] = Field([], description="taints that keep others off these nodes")
    cpu: str = Field(description="CPUs requested")
    memory: str = Field(description="memory requested, and the most a step may take")
    accelerator: str = Field("", description="resource name of an accelerator; empty: none")
    accelerators: str = Field("0", pattern="^[0-9]+$", description="accelerators of a step")
    shared_memory: str = Field("", description="size of /dev/shm; empty: the container's own 64 MiB")
    scratch: str = Field("", description="most disk that a step may fill in /tmp; empty: no limit")
    queue: str = Field("", description="Kueue's local queue that the step waits in; empty: none")


_GPU = {
    "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
    "accelerator": "nvidia.com/gpu",
    "accelerators": "1",
    "queue": "posgap-gpu",
}


class ClusterConfig(Config):
    """What a compiled pipeline assumes of the cluster; see infra/kubernetes, which provides it."""

    train: PoolConfig = PoolConfig(
        nodes={"posgap.dev/pool": "train"}, cpu="8", memory="64Gi", shared_memory="16Gi", scratch="200Gi", **_GPU
    )
    inference: PoolConfig = PoolConfig(
        nodes={"posgap.dev/pool": "inference"}, cpu="4", memory="32Gi", shared_memory="8Gi", scratch="100Gi", **_GPU
    )
    cpu: PoolConfig = PoolConfig(nodes={"posgap.dev/pool": "cpu"}, cpu="2", memory="16Gi")
    trainer: bool = Field(False, description="training runs as a TrainJob of Kubeflow Trainer, which it has")
    registry: str = Field("ghcr.io/posgap", description="where the images are")
    pull_secret: str = Field("", description="secret with the registry's credentials; empty: none")
    user: int = Field(10001, ge=1, description="user that steps run as")
    model_cache: str = Field("", description="volume claim with the Hugging Face cache, for GPU steps; empty: none")
    environment: str = Field("posgap-env", description="config map with the environment of every step")
    variables: list[str] = Field(
        [
            *("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "MLFLOW_DISABLE_TELEMETRY", "GX_ANALYTICS_ENABLED"),
            *("DO_NOT_TRACK", "AWS_REGION", "AWS_ENDPOINT_URL", "POSGAP_KFP_UI"),
        ],
        description="keys of that config map; one that it lacks is left unset",
    )
    secrets: dict[str, list[str]] = Field(
        {
            "posgap-s3": ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"],
            "posgap-hub": ["HF_TOKEN"],
            "posgap-mlflow": ["MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN"],
            "posgap-webhook": ["POSGAP_WEBHOOK_URL"],
        },
        description="secrets and those of their keys that are environment variables of every step; each may be missing",
    )


class PreflightConfig(StageConfig):
    """Checks the pipeline's form, and what a run needs, before any GPU time is spent.

    What the form gives to a stage is checked by that stage's config.
    """

    train_data: str = Field(
        description="examples to train on, or where versions of them begin, of which the newest is taken"
    )
    eval_data: str = Field(description="examples to judge by; none of them may be among the training examples")
    model: str = Field(description="folder of the Hugging Face model")
    task: str = Field(SweepConfig.default("task"), description=f"how prompts are worded: {TASK_NAMES}")
    n_docs: int = Field(SweepConfig.default("n_docs"), description="documents in a prompt")
    methods: str = Field(
        "r1",
        description=f"what is tried, of {', '.join(METHODS)}, like r1+lpes; the best that the gate admits wins",
    )
    backend: str = Field("vllm", description="what generates: transformers or vllm")
    shards: int = Field(1, description="parts of a sweep that run side by side")
    max_gap: float = Field(GateConfig.default("max_gap"), description="highest gap that the gate admits, in points")
    registered_name: str = Field(PromoteConfig.default("name"), description="registered model in MLflow")
    only_new: bool = Field(False, description="end at once where training data and model are those of the champion")
    webhook_url: str = Field("", description="address told how the run ended; empty: POSGAP_WEBHOOK_URL, if set")
    nodes_train: Values = Field(ClusterConfig().train.nodes, description="labels of the nodes to train on")
    nodes_inference: Values = Field(ClusterConfig().inference.nodes, description="labels of the nodes to generate on")
    nodes_cpu: Values = Field(ClusterConfig().cpu.nodes, description="labels of the nodes for everything else")
    tolerations: Annotated[list[Any], BeforeValidator(_json)] = Field(
        ClusterConfig().train.tolerations, description="taints of GPU nodes that steps tolerate"
    )
    gpus_train: str = Field(ClusterConfig().train.accelerators, description="GPUs of a training step")
    overrides: Values = Field(
        {},
        description='other parameters by name, like {"learning_rate": 1e-5}, or of one stage: {"sweep.limit": 99}',
    )
    trainer: bool = Field(False, description="training runs as a TrainJob, which needs `work` in S3")
    gpus_here: int = Field(0, ge=0, description="GPUs that the machine which checks must have itself")


class ReportConfig(StageConfig):
    """Says how a pipeline run ended: to MLflow, and to a webhook if there is one."""

    pipeline_run: str = Field("", description="id of the KFP run; empty: that of POSGAP_PIPELINE_RUN")
    state: str = Field("", description="how KFP says the run ended; empty: as its stages did, by MLflow")
    message: str = Field("", description="what KFP says about it")
    registered_name: str = Field(PromoteConfig.default("name"), description="registered model in MLflow")
    webhook_url: str = Field(
        "", description="address to post the outcome to as JSON; empty: POSGAP_WEBHOOK_URL, if set"
    )


class ServeCheckConfig(Config):
    """Prints the RoPE factors that a loaded model applies, layer by layer, beside those of its config."""

    model: ModelPath = Field(description="Hugging Face model folder")
    backend: Literal["auto", "vllm", "transformers"] = Field("auto", description="auto: vllm where it is installed")


Numbers = Annotated[list[float], BeforeValidator(_split_commas)]


class RolloutPredictConfig(StageConfig):
    """Predicts, from mask, position encoding, residuals and depth alone, what reaches the last token."""

    measurement: OptionalInputPath = Field(None, description="folder `rollout measure` wrote: what is 0 or asked of it")
    sequence_length: int = Field(0, ge=0, description="tokens (N); 0: the measurement's")
    layers: int = Field(0, ge=0, description="layers (L); 0: the measurement's")
    heads: int = Field(0, ge=0, description="attention heads (H); 0: the measurement's")
    mask: Literal["causal", "full", "window", "prefix"] = Field("causal", description="which tokens a token sees")
    window: int = Field(0, ge=0, description="window: tokens seen, the token itself included (w)")
    prefix: int = Field(0, ge=0, description="prefix: first tokens that all tokens see (K)")
    encoding: Literal["measured", "none", "decay", "alibi", "rope"] = Field(
        "none", description="position encoding; measured: that of the measured model"
    )
    slope: float = Field(0.223, ge=0, description="decay: score lost per token of distance (m)")
    rope_theta: float = Field(10000.0, gt=0, description="rope: base of the angles")
    head_size: int = Field(64, ge=2, multiple_of=2, description="rope: size of a head (d)")
    rope_angle: float = Field(0.0, description="rope: angle of query and key before rotation, in radians")
    rope_strength: float = Field(1.0, ge=0, description="rope: |query| |key| / sqrt(d), the score of parallel ones")
    rope_factors: Numbers = Field(
        [], description="rope: factor per layer that divides positions (LPES); empty: none, or the measured model's"
    )
    residual: Literal["constant", "power", "measured"] = Field(
        "constant", description="residual strength by layer; power: lambda * layer^-power; measured: the measurement's"
    )
    residual_strength: float = Field(
        0.5, ge=0, le=1, description="lambda: share of attention in a layer, R = (1 - lambda) I + lambda A"
    )
    residual_power: float = Field(1.0, ge=0, description="power: exponent of the decay with depth")
    content: Literal["none", "constant", "mean", "heads"] = Field(
        "none",
        description="extra score of a token on itself: none, `content-score`, or the measurement's mean or per layer "
        "and head",
    )
    content_score: float = Field(0.0, description="constant: that score")
    head_weights: Numbers = Field([], description="weight of each head in the average; empty: uniform")
    temperature: float = Field(1.0, gt=0, description="divides all scores")
    label: str = Field("predicted", description="what plots and tables call this prediction")


class RolloutMeasureConfig(StageConfig):
    """Measures residual strengths, attention and what of the input reaches the last token, on a model."""

    texts: InputPath = Field(description="a text, .jsonl(.gz) with a field `text`, or with `task` examples")
    model: ModelPath = Field(description="Hugging Face model folder or hub name")
    task: Annotated[str, AfterValidator(_known_task_if_any)] = Field(
        "", description=f"read `texts` as examples worded for {TASK_NAMES}; empty: as text"
    )
    n_docs: int = Field(20, ge=1, description="with `task`: documents in a prompt")
    length: int = Field(0, ge=0, description="tokens of every text (N); 0: 256, or with `task` the shortest prompt's")
    limit: int = Field(0, ge=0, description="use the first so many texts; 0: all")
    batch_tokens: int = Field(4096, ge=1, description="tokens read at once")
    dtype: Literal["auto", "float32", "bfloat16"] = Field("auto", description="auto: bfloat16 on a GPU, else float32")
    sink_threshold: float = Field(0.2, gt=0, lt=1, description="attention above which a token counts as a sink (tau)")
    label: str = Field("model", description="what plots and tables call this model")


class RolloutCompareConfig(StageConfig):
    """Lays predicted and measured distributions, and a sweep's accuracy, over each other."""

    prediction: InputPath = Field(description="folder `rollout predict` wrote")
    measurement: InputPath = Field(description="folder `rollout measure` wrote")
    influence: Literal["gradient", "gradient_times_input", "rollout", "rollout_without_residuals"] = Field(
        "gradient", description="the measured distribution to compare with; all are in the table"
    )
    sweep: OptionalInputPath = Field(None, description="sweep whose accuracy curve is drawn too")
    resamples: int = Field(2000, ge=100, description="bootstrap resamples of the texts")


class RolloutExperimentConfig(StageConfig):
    """Trains attention-only networks in which one cause of position bias at a time is switched on."""

    preset: Literal["quick", "figure2", "figure3", "figure6", "figure8", "figure11", "figure12", "figure13"] = Field(
        "quick", description="a figure of Wu et al. (2025) at its sizes, or smaller networks for minutes on two cores"
    )
    seeds: int = Field(0, ge=0, description="networks trained for each setting; 0: the preset's")
    iterations: int = Field(0, ge=0, description="training steps; 0: the preset's")
    batch: int = Field(0, ge=0, description="sequences a step; 0: the preset's")
    learning_rate: float = Field(0.0, ge=0, description="of AdamW; 0: the preset's")
    tests: int = Field(0, ge=0, description="sequences of each test set; 0: the preset's")
    as_coded: bool = Field(
        False, description="deviation 1/d and middle n/2 + 1, as the paper's code has them, not variance 1/d and n/2"
    )
    side_by_side: int = Field(8, ge=1, description="networks trained at once")
    work: WorkPath = Field(None, description="folder of checkpoints and finished trials; empty: beside `out`")


class MakeKVConfig(Config):
    """Writes synthetic UUID records in the format of the public lost-in-the-middle file."""

    out: OutputPath = Field(description="file to write, .jsonl or .jsonl.gz")
    n_examples: int = Field(300, ge=1, description="examples, one a line")
    n_keys: int = Field(75, ge=1, description="records an example")
    seed: int = Field(0, description="equal seeds write equal files")


class MakeQAConfig(Config):
    """Gives questions distractors: passages of the other questions, none of which contains an answer."""

    examples: InputPath = Field(description="imported examples, .jsonl or .jsonl.gz; their own distractors are dropped")
    out: OutputPath = Field(description="examples to write, .jsonl or .jsonl.gz")
    n_docs: int = Field(20, ge=1, description="documents an example, the gold ones included")
    seed: int = Field(0, description="equal seeds draw equal distractors")


class MakeNeedleConfig(Config):
    """Writes synthetic needle questions: one number asked for among invented facts, for the task qa."""

    out: OutputPath = Field(description="examples to write, .jsonl or .jsonl.gz")
    n_examples: int = Field(300, ge=1, description="examples, one a line")
    n_docs: int = Field(20, ge=1, le=5000, description="documents an example")
    facts: int = Field(3, ge=1, le=12, description="facts a document, the needle among them")
    digits: int = Field(7, ge=1, le=18, description="digits of each number")
    seed: int = Field(0, description="equal seeds write equal files")


class MakeTwoHopConfig(Config):
    """Writes synthetic two-hop questions about people and whom they know, as examples."""

    out: OutputPath = Field(description="examples to write, .jsonl or .jsonl.gz")
    n_examples: int = Field(300, ge=1, description="examples, one a line")
    n_docs: int = Field(20, ge=3, le=24, description="documents an example, the two gold ones included")
    seed: int = Field(0, description="equal seeds write equal files")


class ImportConfig(Config):
    """Turns a public data file, or your own, into posgap's examples."""

    input: InputPath = Field(description="file to read, .jsonl or .json, also with .gz")
    out: OutputPath = Field(description="examples to write, .jsonl or .jsonl.gz")
    format: Literal["litm-kv", "litm-qa", "dpr", "hotpotqa", "musique", "2wiki", "own"] = Field(
        "litm-kv",
        description="litm-kv, litm-qa: lost-in-the-middle key-value or QA; dpr: NQ, TriviaQA or WebQ with DPR's "
        "passages; hotpotqa: its distractor setting; 2wiki: 2WikiMultiHopQA; own: lines of question, answers, "
        "documents (docs/formats.md)",
    )
    first: int = Field(1, ge=1, description="first line, or item, to read")
    last: int = Field(0, ge=0, description="last line to read; 0: to the end")
    min_docs: int = Field(0, ge=0, description="leave out examples of fewer documents; 0: none")
    queries: int = Field(1, ge=1, description="litm-kv: keys asked for per line, the line's own first")
    key_digits: int = Field(0, ge=0, description="litm-kv: cut keys to so many characters; 0: whole")
    value_digits: int = Field(0, ge=0, description="litm-kv: cut values to so many characters; 0: whole")
    seed: int = Field(0, description="litm-kv: draws the further queries")


class FetchConfig(Config):
    """Downloads a public data file into the cache (POSGAP_CACHE, else ~/.cache/posgap) and prints its path."""

    name: Annotated[Literal[tuple(SOURCES)], POSITIONAL] = Field(description="which file")  # type: ignore[valid-type]


class NewestConfig(Config):
    """Prints where the newest complete data version is: the highest date or number in the names below a prefix."""

    prefix: Annotated[str, POSITIONAL] = Field(
        min_length=1, description="a folder, or the beginning of names in one: s3://bucket/data/, data/train-"
    )


class PipelineCompileConfig(Config):
    """Compiles the mitigation pipeline to YAML, to be uploaded in the KFP UI."""

    out: Annotated[Local | None, Role.OUTPUT, BeforeValidator(_location_if_any), OnThisMachine] = Field(
        None, description="file to write; empty: standard output"
    )


class PipelineArguments(Config):
    param: Arguments = Field(
        {}, description="NAME=VALUE, as often as needed: a parameter of the pipeline; lists and objects as JSON"
    )
    smoke: bool = Field(False, description="parameters for the tiny model, wherever --param says nothing else")


class PipelineRunConfig(PipelineArguments):
    """Runs the mitigation pipeline on this machine, without a cluster."""

    out: Annotated[OutputPath, OnThisMachine] = Field(
        Path("runs/pipeline"), description="folder of the run; what is complete in it is reused"
    )


class CompiledPipeline(PipelineArguments):
    file: Annotated[OptionalInputPath, OnThisMachine] = Field(
        None, description="compiled pipeline; empty: the one of this version"
    )


class ServerConfig(Config):
    host: str = Field(
        "", description="address of KFP, like http://localhost:8080; empty: $KFP_HOST, $KF_PIPELINES_ENDPOINT"
    )
    namespace: str = Field("", description="namespace of a multi-user installation; empty: KFP has only one")
    experiment: str = Field("posgap", min_length=1, description="KFP experiment; made where there is none")
    request_timeout: float = Field(30.0, gt=0, description="seconds to wait for an answer")
    retries: int = Field(5, ge=0, description="times a request is tried again before giving up")


class PipelineOnCluster(ServerConfig, CompiledPipeline):
    no_cache: bool = Field(False, description="run every step again, also where KFP has kept its result")
    service_account: str = Field("", description="Kubernetes service account of the steps; empty: KFP's own choice")


class PipelineSubmitConfig(PipelineOnCluster):
    """Runs the mitigation pipeline on a KFP server. The token is read from KFP_TOKEN, never from the command line."""

    name: str = Field("", description="name of the run; empty: the pipeline's name and the time")
    wait: bool = Field(
        False, description="wait for the end; exit code 4 where the run failed, 5 where it was cancelled"
    )
    timeout: float = Field(
        86400.0, gt=0, description="with --wait: seconds to wait; then exit code 6, and the run goes on"
    )
    interval: float = Field(10.0, gt=0, description="with --wait: seconds between looks")


ScheduleName = Annotated[str, POSITIONAL]


class ScheduleCreateConfig(PipelineOnCluster):
    """Runs the pipeline again and again: one run at a time, and none to make up for what was missed.

    Given again, it does nothing; given with anything changed, it replaces the schedule.
    """

    name: ScheduleName = Field(min_length=1, description="name of the schedule within the experiment")
    cron: str = Field(description="when: minute hour day month weekday, or the same with seconds before them")
    timezone: str = Field("UTC", description="time zone of --cron, like Europe/Berlin")
    cluster_timezone: str = Field(
        "UTC", description="time zone in which the cluster reads cron: cronScheduleTimezone of KFP's configuration"
    )


class ScheduleListConfig(ServerConfig):
    """Lists the experiment's schedules: state, when, and the next run."""


class NamedScheduleConfig(ServerConfig):
    name: ScheduleName = Field(min_length=1, description="name of the schedule")


class SchedulePauseConfig(NamedScheduleConfig):
    """Stops a schedule from starting runs; a run under way goes on."""


class ScheduleResumeConfig(NamedScheduleConfig):
    """Lets a paused schedule start runs again."""


class ScheduleDeleteConfig(NamedScheduleConfig):
    """Removes a schedule; where a run of it is under way, pauses it and says so."""


class PipelineLintConfig(CompiledPipeline):
    """What a run would ask of the cluster, step by step. Exit code 1 where something looks wrong."""

    format: Literal["table", "json"] = Field("table", description="how it is printed")


class DemoConfig(Config):
    """Trains a tiny model that gets lost in the middle, closes its gap and registers it."""

    out: Annotated[OutputPath, OnThisMachine] = Field(Path("runs/demo"), description="folder of the run")
    seed: int = Field(0, description="seed of the tiny model and of every stage")
    data: Annotated[OptionalInputPath, OnThisMachine] = Field(
        None, description="lost-in-the-middle key-value file; empty: made by the demo"
    )
    smoke: bool = Field(False, description="a minute's run that tries every step, on too little data for a verdict")
