"""Options of `rollback`."""

from pydantic import Field

from posgap.options.base import RegisteredConfig
from posgap.options.verb import Verb


class RollbackConfig(RegisteredConfig):
    """Makes the previous champion the champion again; `posgap view models:/NAME` then says so, and why."""

    reason: str = Field(pattern=r"^[^\r\n]{1,300}$", description="why, in one line")


VERB = Verb(RollbackConfig, 'my-model --reason "answers in French"')
