"""Options of `promote`."""

from typing import Annotated

from pydantic import Field

from posgap.foundation.fields import (
    NO_OPTION,
    InputPath,
    ModelPath,
    OptionalInputPath,
    RegisteredName,
    WorkPath,
)
from posgap.options.base import StageConfig
from posgap.options.verb import Kind, Verb


class PromoteConfig(StageConfig):
    """Registers a model that passed the gate and makes it the champion."""

    model: ModelPath = Field(description="Hugging Face folder of the candidate")
    gate: InputPath = Field(description="folder from `gate`")
    sweep: InputPath = Field(description="sweep of the candidate")
    examples: OptionalInputPath = Field(
        None,
        description="swept examples, to score every response again and to ask some again; empty: those that the sweep "
        "names",
    )
    base: OptionalInputPath = Field(
        None,
        description="folder of the base model, if it has moved since its sweep; for a first version, posgap asks the "
        "base some prompts of its sweep again",
    )
    name: RegisteredName = Field("posgap", description="name of the registered model in MLflow")
    approval: bool = Field(
        False,
        description="let it wait, as alias challenger, until `posgap approve` makes it the champion, even if no policy "
        "asks for that",
    )
    gate_again: WorkPath = Field(
        None,
        description="folder for a new verdict by the same policy if the champion has changed since `gate`; empty: "
        "refuse the model then",
    )
    despite_rollback: str = Field(
        "",
        pattern=r"^[^\r\n]{0,300}$",
        description="reason, in one line, to promote a model that was rolled back; empty: refuse it",
    )
    recipe: Annotated[str, NO_OPTION] = Field(
        "", description="digest of how the model was made, from `preflight`; empty: is not recorded"
    )


VERB = Verb(
    PromoteConfig,
    "--model run/candidate --sweep run/after --gate run/gate --name my-model --out run/promotion",
    results=("promotion.json",),
    kind=Kind.STAGE_WITH_CHECKS,
)
