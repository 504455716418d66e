"""Sweeps, and what is made of them."""

from typing import Annotated, Literal

from pydantic import Field

from posgap.choices import BACKENDS
from posgap.config.base import BackendConfig, Config, StageConfig
from posgap.config.fields import (
    MOST_DOCS,
    POSITIONAL,
    Allowed,
    InputPath,
    InputPaths,
    ModelPath,
    OptionalInputPath,
    Placements,
    Shard,
)

ALLOW = "what the sweeps may ask otherwise, like prompt,template; besides question, shuffle, max_new_tokens, decoding"


class SweepConfig(*BACKENDS.bases(), BackendConfig):  # type: ignore[misc]  # registered choices' parameters
    """Accuracy with the gold documents at every position, and the gap between best and worst.

    `posgap plan sweep` says how many examples it takes.
    """

    model: ModelPath = Field(
        description="Hugging Face model folder or hub name; openai: what the endpoint calls the model"
    )
    positions: Placements = Field(
        [], description="placements like 1,5,10, or 1+2,19+20 for two documents; empty: all, or pairs of every category"
    )
    shard: Shard = Field("", description="sweep one part of the placements: 2/4 is the second of four; empty: all")
    limit: int = Field(0, ge=0, description="use the first so many examples; 0: all")
    label: str = Field("", description="what plots and tables call this model; empty: the method that made it")


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
    n_docs: int = Field(20, ge=2, le=MOST_DOCS, description="placements swept")
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
    allow: Allowed = Field([], description=ALLOW)


class DiagnoseConfig(StageConfig):
    """Why a swept model errs: the tokens its answers turn at, and where its attention goes."""

    sweep: InputPath = Field(description="folder `sweep` wrote")
    examples: InputPath = Field(description="examples that were swept")
    model: ModelPath = Field(description="model that was swept")
    tokens: int = Field(64, ge=0, description="wrong answers diagnosed token by token; 0: none")
    attention: int = Field(8, ge=0, description="examples whose attention is measured at every placement; 0: none")
    dtype: Literal["auto", "float32", "bfloat16"] = Field("auto", description="auto: bfloat16 on a GPU, else float32")
    batch_tokens: int = Field(32768, ge=1, description="tokens read at once, padding included")
