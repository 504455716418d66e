"""Records what an endpoint says of the model behind it; nothing else is known of that model."""

import logging
from collections.abc import Iterable
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Literal, Protocol, Self, runtime_checkable

from pydantic import Field

from posgap.foundation.errors import PosgapError
from posgap.foundation.files import Record, read_model, write_json

log = logging.getLogger(__name__)
MAX_NAMES = 100  # that an endpoint may change between, if it may; more are not recorded
What = Literal["model", "fingerprint"]
# What must stay unchanged at an endpoint throughout a sweep, by the parameter `identity`.
MUST_STAY: dict[str, tuple[What, ...]] = {"fingerprint": ("model", "fingerprint"), "model": ("model",), "any": ()}


class EndpointChanged(PosgapError):
    """An endpoint reports a changed identity; `allowed_by` is the `identity` that would accept it."""

    def __init__(self, line: str, allowed_by: str):
        super().__init__(
            f"{line}; what was answered is kept: --identity {allowed_by} accepts both, another --out starts a new sweep"
        )
        self.line = line
        self.allowed_by = allowed_by


class EndpointIdentity(Record):
    """What an endpoint said of itself, in the order of its first reports."""

    models: tuple[str, ...] = Field((), description="model names in the endpoint's answers")
    fingerprints: tuple[str, ...] = Field((), description="system fingerprints in the endpoint's answers")
    left_out: tuple[str, ...] = Field((), description="parameters that the endpoint did not accept")
    notes: tuple[str, ...] = Field((), description="what posgap noticed about an application before the sweep")

    def values_of(self, what: What) -> tuple[str, ...]:
        """The names, or the fingerprints."""
        return self.models if what == "model" else self.fingerprints

    def with_value(self, what: What, value: str) -> Self:
        """Returns a copy with one more name or fingerprint."""
        return self.model_copy(update={f"{what}s": (*self.values_of(what), value)})

    def with_left_out(self, parameter: str) -> Self:
        """Returns a copy with one more parameter left out."""
        return self.model_copy(update={"left_out": (*self.left_out, parameter)})

    @classmethod
    def combine(cls, parts: Iterable["EndpointIdentity | None"]) -> "EndpointIdentity | None":
        """All that the parts of a sweep say, in their order, each once; None if none says anything."""
        there = list(filter(None, parts))
        said = {name: tuple(dict.fromkeys(chain(*map(attrgetter(name), there)))) for name in cls.model_fields}
        return cls(**said) if there else None

    @classmethod
    def read_from(cls, file: Path) -> Self:
        """Reads what `write_to` wrote; nothing if there is no such file."""
        return read_model(cls, file, "") if file.exists() else cls()

    def write_to(self, file: Path) -> None:
        """Writes it down, atomically."""
        write_json(file, self.model_dump(mode="json"))


class ServedModel:
    """Compares what an endpoint says of its model with what it said before.

    `asked` is the model's name in requests, `shown` the endpoint's address in messages, and `must_stay` a key of
    `MUST_STAY`. `identity` begins with what an interrupted sweep has recorded.
    """

    def __init__(self, shown: str, asked: str, must_stay: str, identity: EndpointIdentity | None = None):
        self.shown = shown
        self.asked = asked
        self.must_stay = must_stay
        self.identity = identity or EndpointIdentity()

    def note(self, model: str, fingerprint: str) -> None:
        """Notes what an answer says; empty if nothing. Raises `EndpointChanged` if that must not change, and does."""
        says: dict[What, str] = {"model": model, "fingerprint": fingerprint}
        for name, now in says.items():
            before = self.identity.values_of(name)
            if not now or now in before:
                continue
            if before and name in MUST_STAY[self.must_stay]:
                raise EndpointChanged(
                    f"{self.shown}: its {name} changed from {before[-1]} to {now}",
                    "model" if name == "fingerprint" else "any",
                )
            if name == "model" and not before and not _is_related(now, self.asked):
                log.warning("%s: requested model %s, but the endpoint says it is %s", self.shown, self.asked, now)
            if len(before) < MAX_NAMES:
                self.identity = self.identity.with_value(name, now)


def _is_related(name: str, asked: str) -> bool:
    """Whether two names of models may be of the same: one has the other in it, folders apart."""
    one, other = (text.rstrip("/").rpartition("/")[2].lower() for text in (name, asked))
    return one in other or other in one


@runtime_checkable
class EndpointGenerator(Protocol):
    """A generator that calls a remote model, with all that is known of that model."""

    served: EndpointIdentity

    def require_same(self) -> None:
        """Asks the endpoint. Raises `EndpointChanged` if its model differs from `served`, another `PosgapError` if it
        does not answer."""
        ...
