"""What a recipe tells measurement: which model answers, which prompts it gets, and how the answers are named and
kept."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Self

from posgap.generation.asking import ModelAccess
from posgap.generation.backends import BACKENDS


@dataclass(frozen=True)
class AskingSettings:
    """The model that answers prompts, and the names under which its answers are kept beside `out`.

    `examples` is the file that the examples are from. An empty `metric` is the task's own. `response_key` has the
    verb's parameters that decide responses, except those that already show in the prompts' digest.
    """

    access: ModelAccess
    metric: str
    examples: Path
    out: Path
    response_key: Mapping[str, Any]

    @property
    def model(self) -> str:
        """The model's name, as given."""
        return self.access.model

    @property
    def is_local(self) -> bool:
        """Whether the model is on this machine."""
        return BACKENDS[self.access.backend].local


@dataclass(frozen=True)
class SweepSettings(AskingSettings):
    """The settings of a sweep. `recorded` has all its parameters, as `sweep.json` keeps them.

    `task` is a name, or a definition from a file. Each prompt is asked `samples` times, greedily at `temperature` 0.
    Without `positions` a sweep tests all positions, or only those of a `shard`.
    """

    task: str
    n_docs: int
    max_unanswered: float
    recorded: Mapping[str, Any]
    label: str = ""
    positions: Sequence[str] = ()
    baselines: Sequence[str] = ()
    shard: str = ""
    limit: int = 0
    samples: int = 1
    temperature: float = 0.0
    mitigation: str = ""
    mitigation_settings: Mapping[str, Any] = field(default_factory=dict)

    def with_parameters(self, **changed: Any) -> Self:
        """Returns these settings with other values of some parameters, which are recorded too."""
        own = {each.name: changed[each.name] for each in fields(self) if each.name in changed}
        key = {name: changed.get(name, value) for name, value in self.response_key.items()}
        return replace(self, response_key=key, recorded={**self.recorded, **changed}, **own)

    @property
    def as_recorded(self) -> dict[str, Any]:
        """Returns the parameters for `sweep.json`; a mitigation's only if there is one."""
        none = set() if self.mitigation else {"mitigation", "mitigation_settings"}
        return {name: value for name, value in self.recorded.items() if name not in none}
