"""The registries of everything that users choose by name: tasks, metrics, methods, recipes, curves, ...

A choice is one object that owns everything about it: its name, its text for `--help`, the parameters that it adds to
the stages that offer it, and its code. `Choices` holds all objects of one kind: those of posgap, and those that
installed packages add by an entry point (docs/extending.md).

Every command imports the modules of all choices, so these modules import torch, numpy and other heavy packages only
inside functions.
"""

import importlib
import logging
from collections.abc import Callable, Iterator
from functools import cache, cached_property
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Generic, Protocol, Self, TypeVar, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from posgap.errors import PosgapError

if TYPE_CHECKING:
    from posgap.distillation.methods import Method
    from posgap.distillation.recipes import Recipe
    from posgap.gating.rules import GateRule
    from posgap.generation.backends import Backend
    from posgap.mitigations.mitigation import Mitigation, PromptMitigation
    from posgap.rollout.position_encodings import PositionEncoding
    from posgap.scaling.curve_kinds import CurveKind
    from posgap.tasks.baselines import Baseline
    from posgap.tasks.metrics import Metric
    from posgap.tasks.task import Task

log = logging.getLogger(__name__)
SECRET = "secret"  # marks a field that is written down nowhere
WITHOUT_EFFECT = "without effect"  # marks a parameter that changes the speed, but not the result


def split_commas(value: Any) -> Any:
    """A list as a command line gives it, "1,2" or "1 2", in its parts; anything else as it is."""
    return value.replace(",", " ").split() if isinstance(value, str) else value


def split_rows(value: Any) -> Any:
    """A list as `split_commas` reads it, or a list of such lists where semicolons part the text, "1,2;3,4"."""
    if isinstance(value, str) and ";" in value:
        return [split_commas(row) for row in value.split(";") if row.strip()]
    return split_commas(value)


def unset_if_empty(value: Any) -> Any:
    """None for an empty string, which stands in KFP and MLproject, that have no null, for what is not given."""
    return None if value == "" else value


# Numbers that a recipe decides where they are not given: a config always has them.
if TYPE_CHECKING:
    Number = Any
    WholeNumber = Any
else:
    Number = Annotated[float | None, BeforeValidator(unset_if_empty)]
    WholeNumber = Annotated[int | None, BeforeValidator(unset_if_empty)]
Numbers = Annotated[list[float], BeforeValidator(split_commas)]
NumbersOrRows = Annotated[list[float | list[float]], BeforeValidator(split_rows)]
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


class Choices(Generic[T]):
    """All choices of one kind, by name, in the order in which they were registered.

    `builtin` names posgap's own choices as "module:OBJECT"; `group` is the entry point group of packages. An entry
    point that cannot be loaded, or whose name or parameters are taken, is left out with a warning: a broken package
    must not stop commands that do not need it.
    """

    all: ClassVar[list["Choices[Any]"]] = []

    def __init__(self, kind: str, group: str, *builtin: str):
        self.kind, self.group, self.builtin = kind, group, builtin
        Choices.all.append(self)

    @cached_property
    def _by_name(self) -> dict[str, T]:
        choices: dict[str, T] = {}
        for place in self.builtin:
            module, _, name = place.partition(":")
            choice = getattr(importlib.import_module(module), name)
            choices[choice.name] = choice
        for entry in _entry_points().select(group=self.group):
            try:
                choice = entry.load()
                self._require_new(choice, choices)
            except Exception as error:  # anything that a package's import can raise
                log.warning("%s %s of %s is left out: %s", self.kind, entry.name, entry.value, error)
                continue
            choices[choice.name] = choice
        return choices

    @staticmethod
    def _require_new(choice: T, choices: dict[str, T]) -> None:
        if choice.name in choices:
            raise ValueError(f"the name {choice.name!r} is taken")
        others = {other.parameters for other in choices.values()} - {choice.parameters}
        taken = {name for parameters in others for name in parameters.model_fields}
        if shared := taken & set(choice.parameters.model_fields):
            raise ValueError(f"the parameter {min(shared)!r} is taken")

    def __getitem__(self, name: str) -> T:
        """The choice of that name; raises `PosgapError` that lists all names if there is none."""
        if name not in self._by_name:
            raise PosgapError(f"unknown {self.kind} {name!r}: choose {self.listed()}")
        return self._by_name[name]

    def __iter__(self) -> Iterator[T]:
        return iter(self._by_name.values())

    def names(self) -> list[str]:
        """The names of all choices."""
        return [choice.name for choice in self]

    def listed(self) -> str:
        """All names as text, like "kv, qa or needle"."""
        *others, last = self.names()
        return f"{', '.join(others)} or {last}" if others else last

    def described(self) -> str:
        """All names with their help, for the help of an option."""
        return "; ".join(f"{choice.name}: {choice.help}" for choice in self)

    def checked(self, name: str) -> str:
        """The name itself; raises `ValueError`, which pydantic reports, if there is no such choice."""
        try:
            return self[name].name
        except PosgapError as error:
            raise ValueError(str(error)) from None

    def checked_if_any(self, name: str) -> str:
        """The same, but an empty name is allowed and leaves the choice open."""
        return self.checked(name) if name else name

    def bases(self) -> list[type[Parameters]]:
        """The parameters of all choices, as base classes of a config: `class C(*KIND.bases(), Before): ...`.

        The config has the fields of `Before`, then those of the choices in their order, and then its own.
        """
        # pydantic collects the fields of the last base class first.
        return list(
            dict.fromkeys(choice.parameters for choice in reversed(list(self)) if choice.parameters.model_fields)
        )

    def where(self, holds: Callable[[T], bool]) -> "Choices[T]":
        """The choices for which `holds` is true, for a stage that offers only those."""
        return _Some(self, holds)


class _Some(Choices[T]):
    def __init__(self, whole: Choices[T], holds: Callable[[T], bool]):
        self.kind, self.group, self.whole, self.holds = whole.kind, whole.group, whole, holds

    @cached_property
    def _by_name(self) -> dict[str, T]:
        return {choice.name: choice for choice in self.whole if self.holds(choice)}


@cache
def _entry_points() -> Any:  # EntryPoints; in Python 3.11 an older type with the same methods
    return entry_points()  # cached, since reading them takes most of the time here


TASKS: Choices["Task"] = Choices(
    "task",
    "posgap.tasks",
    "posgap.tasks.retrieval:KV",
    "posgap.tasks.retrieval:QA",
    "posgap.tasks.multihop:COT",
    "posgap.tasks.multihop:COC",
    "posgap.tasks.options:OPTIONS",
    "posgap.tasks.judge:JUDGE",
    "posgap.tasks.rag:RAG",
    "posgap.tasks.rag:RAG_ONE",
    "posgap.tasks.rag:RAG_ALONE",
    "posgap.tasks.spans:SPANS",
    "posgap.tasks.spans:SPANS_3",
    "posgap.tasks.spans:SPANS_4",
)
BASELINES: Choices["Baseline"] = Choices(
    "baseline",
    "posgap.baselines",
    "posgap.tasks.baselines:CLOSED_BOOK",
    "posgap.tasks.baselines:ORACLE",
    "posgap.tasks.baselines:RANDOM",
    "posgap.tasks.rag:AS_RETRIEVED",
)
METRICS: Choices["Metric"] = Choices(
    "metric",
    "posgap.metrics",
    "posgap.tasks.metrics:EM",
    "posgap.tasks.metrics:SUB_EM",
    "posgap.tasks.metrics:F1",
    "posgap.tasks.metrics:LITM",
    "posgap.tasks.metrics:CONTAINS_ANY",
    "posgap.tasks.metrics:NUMERIC",
    "posgap.tasks.metrics:REGEX",
    "posgap.tasks.metrics:ALL_OF",
    "posgap.tasks.metrics:SHARE_OF",
)
METHODS: Choices["Method"] = Choices(
    "method",
    "posgap.methods",
    "posgap.distillation.methods:R1",
    "posgap.distillation.methods:R2",
    "posgap.distillation.methods:SFT",
    "posgap.distillation.methods:SEQKD",
    "posgap.scaling.method:LPES",
    "posgap.mitigating.method:MITIGATE",
)
RECIPES: Choices["Recipe"] = Choices(
    "recipe",
    "posgap.recipes",
    "posgap.distillation.recipes:PAPER",
    "posgap.distillation.recipes:AUTHORS",
)
CURVES: Choices["CurveKind"] = Choices(
    "curve",
    "posgap.curves",
    "posgap.scaling.curve_kinds:BEZIER",
    "posgap.scaling.curve_kinds:LINEAR",
    "posgap.scaling.curve_kinds:STEP",
    "posgap.scaling.curve_kinds:FREE",
    "posgap.scaling.curve_kinds:UNIFORM",
)
MITIGATIONS: Choices["Mitigation"] = Choices(
    "mitigation",
    "posgap.mitigations",
    "posgap.mitigations.lpes:LPES",
    "posgap.mitigations.ms_poe:MS_POE",
    "posgap.mitigations.ms_poe:MS_POE_STATIC",
    "posgap.mitigations.linear:LINEAR",
    "posgap.mitigations.ntk:NTK",
    "posgap.mitigations.yarn:YARN",
    "posgap.mitigations.attention_buckets:ATTENTION_BUCKETS",
    "posgap.mitigations.self_extend:SELF_EXTEND",
    "posgap.mitigations.reordering:REVERSED",
    "posgap.mitigations.reordering:REORDERING",
    "posgap.mitigations.attention_sorting:ATTENTION_SORTING",
    "posgap.mitigations.permutation:PERMUTATION",
    "posgap.mitigations.channel_scaling:CHANNEL_SCALING",
    "posgap.mitigations.head_gates:HEAD_GATES",
    "posgap.mitigations.pine:PINE",
    "posgap.mitigations.calibration:CALIBRATION",
)
PROMPT_MITIGATIONS = cast(  # all that a sweep can ask by
    "Choices[PromptMitigation]", MITIGATIONS.where(lambda mitigation: not mitigation.of_model)
)
GATE_RULES: Choices["GateRule"] = Choices(
    "gate rule",
    "posgap.gate_rules",
    "posgap.gating.rules:GAP",
    "posgap.gating.rules:MEAN",
    "posgap.gating.rules:ADVANTAGEOUS",
    "posgap.gating.rules:USEFUL",
    "posgap.gating.rules:WORST",
    "posgap.gating.rules:REGIONS",
    "posgap.gating.rules:ANSWERED",
    "posgap.gating.rules:CONSISTENCY",
)
CHECK_RULES = GATE_RULES.where(lambda rule: not rule.needs_reference)  # all that `posgap check` can apply
BACKENDS: Choices["Backend"] = Choices(
    "backend",
    "posgap.backends",
    "posgap.generation.backends:TRANSFORMERS",
    "posgap.generation.backends:VLLM",
    "posgap.generation.backends:OPENAI",
)
POSITION_ENCODINGS: Choices["PositionEncoding"] = Choices(
    "position encoding",
    "posgap.position_encodings",
    "posgap.rollout.position_encodings:MEASURED",
    "posgap.rollout.position_encodings:NONE",
    "posgap.rollout.position_encodings:DECAY",
    "posgap.rollout.position_encodings:ALIBI",
    "posgap.rollout.position_encodings:ROPE",
)
