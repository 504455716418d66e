"""Describes a verb: its options, an example, the files that it writes."""

from enum import Enum
from typing import NamedTuple

from posgap.options.base import Config


class Kind(Enum):
    """The kind of a verb, beside a command."""

    COMMAND = "nothing else"
    STAGE = "a stage, and no more: whether its output is complete is seen before the stage's module is imported"
    NEEDS_MODEL = "no stage, but its work imports torch: what it reads is looked for before"
    STAGE_WITH_CHECKS = "a stage whose verb asks first what goes before it, or about its output"


class Verb(NamedTuple):
    """A verb: its options are the config's fields, its help is the config's docstring.

    Its recipe is the function of its name, in the file of its name in `posgap.verbs`.
    """

    config: type[Config]
    example: str  # what follows the verb in a command that works
    results: tuple[str, ...] = ()  # files of its folder; `--json` prints the first there; none: what it shows
    kind: Kind = Kind.COMMAND
    stage_config: type[Config] | None = None  # of the stage, if the verb leaves more open; None: the same

    @property
    def is_stage(self) -> bool:
        """Whether the verb runs a stage, which is a step of pipelines too."""
        return self.kind in (Kind.STAGE, Kind.STAGE_WITH_CHECKS)
