"""Options of `policy`."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from posgap.foundation.fields import (
    POSITIONAL,
    OptionalInputPath,
    OptionalRegisteredName,
    OptionalReport,
)
from posgap.options.base import Config
from posgap.options.verb import Verb


class PolicyConfig(Config):
    """Prints a policy as YAML: the default one, as a start for your own file, or a registered model's.

    With a file it gives the model that policy: `promote` admits to it only what the policy does.
    """

    name: Annotated[OptionalRegisteredName, POSITIONAL] = Field(
        "", description="name of the registered model in MLflow"
    )
    file: Annotated[OptionalInputPath, POSITIONAL] = Field(
        None, description="file of the policy, in YAML, that the model gets"
    )
    keygen: OptionalReport = Field(
        None,
        description="file for a new private key that signs verdicts: put its content into POSGAP_SIGNING_KEY of "
        "`posgap gate`, and the printed line into the policy",
    )

    @model_validator(mode="after")
    def _a_key_or_a_policy(self) -> Self:
        if self.keygen and self.name:
            raise ValueError("`keygen` makes a key for any policy; leave the name out")
        if self.file and not self.name:
            raise ValueError("name the registered model that gets this policy")
        return self


VERB = Verb(PolicyConfig, "my-model policy.yaml")
