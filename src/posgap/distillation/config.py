"""Parameters of the teacher and of training."""

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from posgap.distillation.methods import METHODS
from posgap.distillation.recipes import RECIPES
from posgap.foundation.choices import Number, WholeNumber
from posgap.foundation.config import Config, SeededConfig
from posgap.foundation.fields import MODEL, RARE, InputPath, ModelName, OptionalInputPath, Role, WorkPath, in_s3
from posgap.foundation.locations import Location, as_location
from posgap.generation.backends import BACKENDS, BackendConfig
from posgap.tasks.config import QUESTION, SHUFFLE, WORDED, Framed
from posgap.tasks.fields import Placements, QuestionPlace, TaskName

# Distillation learns token ids, so the teacher needs a backend that returns them.
LOCAL_BACKENDS = BACKENDS.where(lambda backend: backend.local)
TRAINING_METHODS = METHODS.where(lambda method: method.trains)


class TeacherConfig(*LOCAL_BACKENDS.bases(), BackendConfig):  # type: ignore[misc]  # registered choices' parameters
    """Samples the model's own responses with the gold documents at the position where it answers best."""

    examples_for: ClassVar[str] = "training"

    backend: Annotated[str, LOCAL_BACKENDS, AfterValidator(LOCAL_BACKENDS.checked)] = Field(
        "transformers", description=f"backend that generates; {LOCAL_BACKENDS.described()}"
    )
    sweep: OptionalInputPath = Field(
        None, description="folder from a `sweep` of this model, from which the best placement is read"
    )
    advantageous: Placements = Field(
        [],
        description="placement of the gold documents, like 1, or 19+20 for two; several, like 1,20: the model answers "
        "at each of them; empty: the best placement of `sweep`",
    )
    temperature: float = Field(0.0, ge=0, description="sampling temperature; 0: greedy")
    keep_incorrect: bool = Field(False, description="keep responses that are not correct, too")
    limit: int = Field(0, ge=0, description="use only the first `limit` examples; 0: all")


class _Distilled(SeededConfig):
    examples_for: ClassVar[str] = "training"
    examples: InputPath = Field(description="examples that the responses answer")
    responses: InputPath = Field(description="folder from `teacher`")
    limit: int = Field(0, ge=0, description="learn only the first `limit` responses; 0: all")
    model: ModelName = Field(description=f"{MODEL}; it is the teacher, and the student starts from it")
    task: TaskName = Field("kv", description=WORDED)
    question: Annotated[QuestionPlace, RARE] = Field("after", description=QUESTION)
    shuffle: Annotated[int, RARE] = Field(0, ge=0, description=SHUFFLE)
    method: Annotated[str, TRAINING_METHODS, AfterValidator(TRAINING_METHODS.checked)] = Field(
        "r1", description=f"training method; {TRAINING_METHODS.described()}"
    )


class _ByRecipe(Config):
    """A config whose field `recipe` decides others, where they are left empty."""

    recipe: Annotated[str, RECIPES, AfterValidator(RECIPES.checked)] = Field(
        "pos2distill",
        description=f"where the values of parameters come from that are left empty; {RECIPES.described()}",
    )
    k: WholeNumber = Field(None, ge=0, description="number of placements drawn for each example in each epoch (K)")
    epochs: WholeNumber = Field(None, ge=1, description="passes over the examples")
    batch_size: WholeNumber = Field(None, ge=1, description="prompts in an optimizer step, over all processes")
    learning_rate: Number = Field(None, gt=0, description="peak learning rate of the optimizer")
    optimizer: Annotated[Literal["adamw", "adamw8bit", "muon"], RARE] = Field(
        "adamw",
        description="of the matrices of layers; adamw; adamw8bit: AdamW with its means in 8 bits, by bitsandbytes; "
        "muon: Muon, which keeps one mean in place of two, scaled to AdamW's size. All else is AdamW's",
    )

    @classmethod
    def _decided(cls, recipe: str) -> dict[str, float | str]:
        return {name: value for name, value in RECIPES[recipe].values().items() if name in cls.model_fields}

    @classmethod
    def shown_defaults(cls) -> dict[str, str]:
        return {name: f"{value}, by --recipe" for name, value in cls._decided(cls.default("recipe")).items()}

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, values: Any) -> Any:
        recipe = values.get("recipe") or cls.default("recipe")
        if recipe not in RECIPES.names():
            return values  # which the field's own check refuses
        decided = cls._decided(recipe).items()
        return values | {name: value for name, value in decided if values.get(name) in (None, "")}


class DistillConfig(_ByRecipe, *TRAINING_METHODS.bases(), Framed, _Distilled):  # type: ignore[misc]  # registered choices' parameters
    """Distils the model's own answers at its best position into the other positions (Pos2Distill)."""

    mix: Annotated[Literal["", "examples", "prompts"], RARE] = Field(
        "",
        description="what is shuffled into steps; examples: whole examples, with all their prompts; prompts: "
        "single prompts, without those of a last step that would be smaller; empty: the recipe's",
    )
    distractors: Annotated[Literal["", "kept", "reshuffled"], RARE] = Field(
        "",
        description="order of a student's distractors; kept: as the teacher read them; reshuffled: one for each prompt",
    )
    micro_batch_tokens: int = Field(
        8192, ge=1, description="tokens that a process reads at once in training; a longer prompt is read by itself"
    )
    schedule: Annotated[Literal["", "linear", "cosine", "constant"], RARE] = Field(
        "", description="how the learning rate falls from its peak to final_rate"
    )
    warmup_steps: Annotated[Number, RARE] = Field(
        None,
        ge=0,
        description="steps in which the learning rate rises from 0 to its peak; below 1: a share of all steps",
    )
    final_rate: Annotated[Number, RARE] = Field(
        None, ge=0, le=1, description="learning rate at the end, as a share of the peak"
    )
    adam_beta1: Annotated[Number, RARE] = Field(None, ge=0, lt=1, description="AdamW's decay of the mean of gradients")
    adam_beta2: Annotated[Number, RARE] = Field(
        None, ge=0, lt=1, description="AdamW's decay of the mean of squared gradients"
    )
    adam_epsilon: Annotated[Number, RARE] = Field(None, gt=0, description="AdamW's least divisor")
    weight_decay: Annotated[Number, RARE] = Field(None, ge=0, description="AdamW's weight decay, of matrices alone")
    max_grad_norm: Annotated[Number, RARE] = Field(
        None, gt=0, description="largest gradient norm; longer gradients are clipped"
    )
    lora_rank: int = Field(0, ge=0, description="rank of LoRA adapters; 0: train all parameters")
    lora_alpha: Annotated[int, RARE] = Field(
        16, ge=1, description="scale of LoRA adapters (alpha): their product is multiplied by alpha / rank"
    )
    lora_base: Annotated[Literal["auto", "nf4"], RARE] = Field(
        "auto",
        description="how frozen weights beneath LoRA adapters are kept; auto: exactly, in bfloat16 where that holds "
        "them and arithmetic is bfloat16; nf4: in 4 bits (QLoRA), by bitsandbytes, for teacher and student",
    )
    lora_export: Annotated[Literal["merged", "adapter"], RARE] = Field(
        "merged",
        description="what a run with lora_rank writes; merged: the whole model; adapter: the adapters alone, in peft's "
        "format, which are read with the model they were trained on",
    )
    dtype: Literal["auto", "float32", "tf32", "bfloat16"] = Field(
        "auto",
        description="arithmetic; auto: bfloat16 on a GPU, else float32; tf32: half as quick as bfloat16 on a GPU, for "
        "divergences that bfloat16 cannot see",
    )
    export_dtype: Annotated[Literal["auto", "float32", "bfloat16", "float16"], RARE] = Field(
        "auto", description="precision in which the model is stored; auto: that of the model it came from"
    )
    export_rounding: Annotated[Literal["auto", "nearest", "stochastic"], RARE] = Field(
        "auto",
        description="rounding of the stored weights; nearest loses steps smaller than the precision, stochastic keeps "
        "them on average; auto: nearest where that keeps what training did",
    )
    gradient_checkpointing: bool = Field(
        False, description="save memory: compute activations again in the backward pass"
    )
    compile: Annotated[bool, RARE] = Field(
        False, description="compile the layers by torch.compile; prompts of an example then share nothing"
    )
    deepspeed: str = Field("", description="zero2, zero3 or a DeepSpeed JSON file; empty: none")
    fsdp: bool = Field(
        False, description="spread parameters, gradients and optimizer over the processes by torch's FSDP2"
    )
    fsdp_offload: Annotated[bool, RARE] = Field(
        False,
        description="with fsdp: keep parameters, gradients and optimizer in main memory, and update there; a layer is "
        "on the GPU while it computes",
    )
    save_steps: Annotated[int, RARE] = Field(
        10, ge=0, description="steps between checkpoints, beside the one at the end; 0: only one at SIGTERM"
    )
    work: WorkPath = Field(
        None, description="folder for checkpoints and teacher states, reused by later runs; empty: beside `out`"
    )

    watch: OptionalInputPath = Field(
        None,
        description="held-out examples by which training is watched, neither trained on nor the gate's; the model of "
        "the best step is written; empty: none",
    )
    watch_last: Annotated[int, RARE] = Field(
        0, ge=0, description="number of `examples`, the last ones, that are watched and not trained on; 0: none"
    )
    watch_every: Annotated[int, RARE] = Field(10, ge=1, description="steps between two sweeps of the held-out examples")
    watch_placements: Annotated[Placements, RARE] = Field(
        [], description="placements to watch beside the teacher's, like 5,10,20; empty: five that are spread evenly"
    )
    stop_gap: float = Field(
        0.0,
        ge=0,
        le=100,
        description="held-out gap in points at which training ends early; it then also ends early where accuracy at "
        "the teacher's placement falls; 0: it goes on to its last step",
    )
    max_hours: Annotated[float, RARE] = Field(
        0.0, ge=0, description="hours after which training ends early; 0: no limit"
    )

    @model_validator(mode="after")
    def _watches_by_one_set(self) -> Self:
        if self.watch and self.watch_last:
            raise ValueError("`watch` and `watch_last` exclude each other; leave one out")
        return self

    @model_validator(mode="after")
    def _adapters_can_be_written(self) -> Self:
        if self.lora_export == "adapter" and not self.lora_rank:
            raise ValueError("`lora_export` adapter: all parameters are trained; give a `lora_rank`")
        if self.lora_export == "adapter" and (self.export_dtype, self.export_rounding) != ("auto", "auto"):
            raise ValueError(
                "`export_dtype` and `export_rounding` are of whole models; leave them out: adapters are written in "
                "float32, and rounded to the base's precision where they are merged"
            )
        return self

    @model_validator(mode="after")
    def _keeps_a_base_in_4_bits(self) -> Self:
        if self.lora_base == "nf4" and not self.lora_rank:
            raise ValueError("`lora_base` nf4 is of frozen weights, and all parameters are trained; give a `lora_rank`")
        if self.lora_base == "nf4" and (self.deepspeed or self.fsdp or self.compile):
            raise ValueError(
                "`lora_base` nf4 was tried with whole, eager layers; leave out `deepspeed`, `fsdp` and `compile`"
            )
        return self

    @model_validator(mode="after")
    def _compiles_whole_parameters(self) -> Self:
        if self.compile and (self.deepspeed or self.fsdp):
            raise ValueError(
                "`compile` was tried where each process holds all parameters; leave it out under `deepspeed` and `fsdp`"
            )
        return self

    @model_validator(mode="after")
    def _optimizer_sees_whole_matrices(self) -> Self:
        if self.optimizer != "adamw" and (self.deepspeed or self.fsdp):
            raise ValueError(
                f"`optimizer` {self.optimizer} takes whole matrices, of which processes have pieces under `deepspeed` "
                "and `fsdp`; leave those out, or give adamw"
            )
        return self

    @model_validator(mode="after")
    def _either_deepspeed_or_fsdp(self) -> Self:
        if self.deepspeed and self.fsdp:
            raise ValueError("`deepspeed` and `fsdp` exclude each other; leave one empty")
        if self.fsdp_offload and not self.fsdp:
            raise ValueError("`fsdp_offload` is of `fsdp`; give both, or a DeepSpeed file that offloads")
        return self


class _OnGpus(Config):
    model: ModelName = Field(description=MODEL)
    gpus: int = Field(1, ge=0, le=4096, description="number of GPUs, one process each; 0: train on the CPU, in float32")
    gpu_memory: float = Field(
        0.0, ge=0, description="memory of each GPU, in GB of 10^9 bytes; 0: 80, and of a CPU what this machine has free"
    )
    gpu_tflops: float = Field(
        0.0,
        ge=0,
        description="TFLOP/s of each GPU in bfloat16, as its maker says, without sparsity; 0: 989, of an H100 SXM, and "
        "of a CPU what a product of matrices reaches on this machine",
    )
    mfu: float = Field(
        0.0,
        ge=0,
        le=1,
        description="share of gpu_tflops that training reaches (model FLOPs utilization); 0: 0.35, and of a CPU 0.7",
    )
    prompt_tokens: int = Field(4096, ge=2, description="tokens of a prompt")
    response_tokens: int = Field(40, ge=1, description="tokens of a response")
    n_examples: int = Field(300, ge=1, description="training examples")


class PlanDistillConfig(_ByRecipe, _OnGpus):
    """Says what `distill` would take on given GPUs or on a CPU (memory, hours, disk), which options let it fit, and
    whether so many updates can move the model.

    Of the model its config alone is read: it needs neither its weights nor a GPU."""


class TrainJobConfig(DistillConfig):
    """Runs `distill` on several machines of a Kubernetes cluster, as a TrainJob that is followed to its end."""

    work: Annotated[Location, Role.WORK, BeforeValidator(as_location), AfterValidator(in_s3)] = Field(
        description="folder in S3 shared by the machines, s3://bucket/work, for checkpoints and teacher states; inputs "
        "and outputs pass through it too"
    )
    deepspeed: str = Field("zero3", pattern="^(zero2|zero3|)$", description="zero2 or zero3; empty: none")
    nodes: int = Field(1, ge=1, description="number of machines")
    gpus_per_node: int = Field(1, ge=1, description="GPUs of each machine, with one process each")
    cpus_per_node: Annotated[int, RARE] = Field(
        0, ge=0, description="CPU cores of each machine; 0: as many as the runtime says"
    )
    memory_per_node: Annotated[str, RARE] = Field(
        "",
        pattern="^([0-9]+[KMGT]i?)?$",
        description="memory of each machine, like 256Gi; empty: as much as the runtime says",
    )
    runtime: Annotated[str, RARE] = Field(
        "posgap-deepspeed", min_length=1, description="training runtime of Kubeflow Trainer"
    )
    image: Annotated[str, RARE] = Field("", description="container image; empty: the runtime's")
    queue: Annotated[str, RARE] = Field("posgap-gpu", description="local queue of Kueue; empty: none")
    namespace: Annotated[str, RARE] = Field(
        "", description="Kubernetes namespace; empty: that of this pod, or of the kubeconfig"
    )
    timeout: Annotated[int, RARE] = Field(
        86400, ge=60, description="seconds until the job is stopped, the wait for GPUs included"
    )
