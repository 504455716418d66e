"""Options of `train-job`."""

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from posgap.foundation.errors import faults
from posgap.foundation.fields import (
    RARE,
    Role,
    from_json,
    in_s3,
)
from posgap.foundation.locations import Location, as_location
from posgap.options.distill import DistillConfig, _TrainingInputs
from posgap.options.verb import Kind, Verb


class TrainJobConfig(_TrainingInputs):
    """Runs `distill` on several machines of a Kubernetes cluster, as a TrainJob that is followed to its end."""

    distill: Annotated[dict[str, Any], BeforeValidator(from_json)] = Field(
        {}, description='the other options of `distill`, as JSON like {"epochs": 3, "lora_rank": 16}'
    )
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
    queue: Annotated[str, RARE] = Field("posgap-gpu", description="local queue of Kueue; empty: none")
    timeout: Annotated[int, RARE] = Field(
        86400, ge=60, description="seconds until the job is stopped, the wait for GPUs included"
    )

    @model_validator(mode="after")
    def _distill_takes_these(self) -> Self:
        own = sorted(set(self.distill) & set(type(self).model_fields))
        wrong = [f"{own[0]}: is an option of `train-job` itself"] if own else faults(self.as_distill)
        if wrong:
            raise ValueError(f"distill: {'; '.join(wrong)}")
        return self

    def as_distill(self) -> DistillConfig:
        """The config of the stage `distill` that the job runs."""
        shared = DistillConfig.model_fields.keys() & type(self).model_fields.keys()
        return DistillConfig(**self.distill | {name: getattr(self, name) for name in shared})

    @classmethod
    def nest(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """Moves the `options` that belong to `distill` alone into its object."""
        own = {name: value for name, value in options.items() if name in cls.model_fields}
        of_distill = {name: value for name, value in options.items() if name not in own}
        return own | {"distill": of_distill}


VERB = Verb(
    TrainJobConfig,
    "--model s3://bucket/model --examples s3://bucket/train --responses s3://bucket/responses "
    "--work s3://bucket/work --out s3://bucket/candidate",
    results=("manifest.json",),
    kind=Kind.STAGE_WITH_CHECKS,
)
