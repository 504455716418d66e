"""The registries of everything that users choose by name: tasks, metrics, methods, curves, ...

A choice is one object that owns everything about it: its name, its text for `--help`, the parameters that it adds to
the stages that offer it, and its code. `Registry` holds all objects of one kind: posgap's own, and those that installed
packages add by an entry point (docs/extending.md).

Every command imports the modules of all choices, so these modules import torch, numpy and other heavy packages only
inside functions.
"""

import logging
from collections.abc import Callable, Iterator
from functools import cache, cached_property
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Generic, Protocol, Self, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from posgap.foundation.errors import BadOption, PosgapError

log = logging.getLogger(__name__)
SECRET = "secret"  # marks a field that is written down nowhere
# A task is loaded while what a backend's module imports is still being read.
_OWN_MODULE = "; define it in a separate module: modules of other kinds import parts of posgap that are not loaded yet"
WITHOUT_EFFECT = "without effect"  # marks a parameter that changes the speed, but not the result


def split_commas(value: Any) -> Any:
    """Splits a command line's list, "1,2" or "1 2"; puts a single number into a list; returns anything else
    unchanged."""
    if isinstance(value, int | float):
        return [value]
    return value.replace(",", " ").split() if isinstance(value, str) else value


def unset_if_empty(value: Any) -> Any:
    """Returns None for an empty string, which KFP and MLproject use for a missing value, as they have no null."""
    return None if value == "" else value


# A number whose default depends on another field: None until that is known.
if TYPE_CHECKING:
    WholeNumber = Any
else:
    WholeNumber = Annotated[int | None, BeforeValidator(unset_if_empty)]
Numbers = Annotated[list[float], BeforeValidator(split_commas)]
PositiveNumbers = Annotated[list[Annotated[float, Field(gt=0)]], BeforeValidator(split_commas)]


class Parameters(BaseModel):
    """Parameters that a choice adds to the stages that offer it. A choice without any uses this class itself."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False, defer_build=True)  # commands start sooner

    @classmethod
    def of(cls, config: object) -> Self:
        """These parameters with the values from a stage's config."""
        return cls(**{name: getattr(config, name) for name in cls.model_fields})


class Choice(Protocol):
    """The interface of every choice. `help` is a phrase that begins in lower case and fits after "name: "."""

    @property
    def name(self) -> str: ...

    @property
    def help(self) -> str: ...

    @property
    def parameters(self) -> type[Parameters]: ...


T = TypeVar("T", bound=Choice)


class Registry(Generic[T]):
    """All choices of one kind, by name, in the order of their registration.

    `builtin` are posgap's own choices; `group` is the entry point group of packages. An entry point is left out with a
    warning if it cannot be loaded, or its name or parameters are taken: a broken package must not stop commands that do
    not need it.
    """

    all: ClassVar[list["Registry[Any]"]] = []
    instead: ClassVar[str] = ""  # what may be given in place of a name, as help shows it; empty: nothing

    def __init__(self, kind: str, group: str, *builtin: T):
        self.kind = kind
        self.group = group
        self.builtin = builtin
        Registry.all.append(self)

    @cached_property
    def _by_name(self) -> dict[str, T]:
        choices = {choice.name: choice for choice in self.builtin}
        for entry in _entry_points().select(group=self.group):
            try:
                choice = entry.load()
                self._require_new(choice, choices)
            except Exception as error:  # anything that a package's import can raise
                hint = _OWN_MODULE if "partially initialized module" in str(error) else ""
                log.warning("%s %s of %s is left out: %s%s", self.kind, entry.name, entry.value, error, hint)
                continue
            choices[choice.name] = choice
        return choices

    @staticmethod
    def _require_new(choice: T, choices: dict[str, T]) -> None:
        if choice.name in choices:
            raise ValueError(f"the name {choice.name!r} is taken")
        for other in choices.values():
            shared = set(other.parameters.model_fields) & set(choice.parameters.model_fields)
            if shared and other.parameters is not choice.parameters:
                raise ValueError(f"the parameter {min(shared)!r} is taken")

    def __getitem__(self, name: str) -> T:
        """Returns the choice with that name; raises `PosgapError`, which lists all names, if there is none."""
        if name not in self._by_name:
            raise BadOption(f"unknown {self.kind} {name!r}: choose {self.names_as_text()}")
        return self._by_name[name]

    def takes(self, text: str) -> bool:
        """Whether a text is given in place of a name."""
        return False

    def __iter__(self) -> Iterator[T]:
        return iter(self._by_name.values())

    def names(self) -> list[str]:
        """The names of all choices."""
        return [choice.name for choice in self]

    def names_as_text(self) -> str:
        """All names as text, like "kv, qa or needle"."""
        *others, last = self.names()
        return f"{', '.join(others)} or {last}" if others else last

    def help_text(self) -> str:
        """All names with their help, for the help of an option."""
        return "; ".join(f"{choice.name}: {choice.help}" for choice in self)

    def require_name(self, name: str) -> str:
        """The name itself; raises `ValueError`, which pydantic reports, if there is no such choice."""
        try:
            return self[name].name
        except PosgapError as error:
            raise ValueError(str(error)) from None

    def require_name_if_any(self, name: str) -> str:
        """The name itself, also an empty one, which leaves the choice open; else raises as `require_name` does."""
        return self.require_name(name) if name else name

    def bases(self) -> list[type[Parameters]]:
        """Returns the parameters of all choices, as base classes of a config: `class C(*KIND.bases(), Before): ...`.

        The config has the fields of `Before`, then those of the choices in their order, and then its own.
        """
        # pydantic collects the fields of the last base class first.
        return list(
            dict.fromkeys(choice.parameters for choice in reversed(list(self)) if choice.parameters.model_fields)
        )

    def where(self, holds: Callable[[T], bool]) -> "Registry[T]":
        """Returns the choices for which `holds` is true, for a stage that offers only those."""
        return _Some(self, holds)


class _Some(Registry[T]):
    def __init__(self, whole: Registry[T], holds: Callable[[T], bool]):
        self.kind = whole.kind
        self.group = whole.group
        self.whole = whole
        self.holds = holds

    @cached_property
    def _by_name(self) -> dict[str, T]:
        return {choice.name: choice for choice in self.whole if self.holds(choice)}


@cache
def _entry_points() -> Any:  # EntryPoints; in Python 3.11 an older type with the same methods
    return entry_points()  # cached, since reading them takes most of the time here
