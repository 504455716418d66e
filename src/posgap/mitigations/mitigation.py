"""What every mitigation says of itself, so that one sweep can try them all.

A mitigation works on a model (its config, its positions) or on what is asked of it (the order of a prompt's documents,
several prompts for one answer). Its `Settings` are what can be chosen about it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict

from posgap.foundation.registry import Parameters

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

    from posgap.tasks.examples import AnyExample, Document

Level = Literal["config", "positions", "attention", "hidden states", "prompt", "decoding"]
# Takes a mitigation's effect back.
Undo = Callable[[], None]


class Settings(BaseModel):
    """What can be chosen about a mitigation: JSON, as a model's config.json and `posgap mitigate` keep it."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)


@dataclass(frozen=True)
class Mitigation:
    """A remedy by its name.

    `source` is the paper, with section or equation. `cost` says in a phrase what a served prompt pays for it beside
    the model's own work; "nothing" where that is so. `served_by` are the programs that serve it: "anything" that loads
    the model folder, or some of "transformers" (with posgap), "vllm" (with posgap's plugin), "endpoints" (posgap asks).
    `order_free` says that prompts have the same order whatever order is given, but for documents that are equally
    relevant, so that a gap of 0 is none of its merits. A form that names one that `needs_rope` is refused for a model
    without, before a run.
    """

    name: str
    help: str
    level: Level
    source: str
    cost: str
    served_by: tuple[str, ...]
    settings: type[Settings]
    order_free: bool = field(default=False, kw_only=True)
    needs_rope: bool = field(default=False, kw_only=True)
    parameters: ClassVar[type[Parameters]] = Parameters  # none: settings are given as JSON
    of_model: ClassVar[bool] = False


@dataclass(frozen=True)
class ModelMitigation(Mitigation):
    """A mitigation of a model in memory; `posgap.mitigations.in_force` applies, replaces, removes and records it.

    `apply(model, settings)` puts it in force and returns what takes it back. It raises `PosgapError`, before it has
    changed anything, with the true reason why a family cannot have it. `neutral(config)` are settings that change
    nothing, to the bit; None where there are none. `tried(tried_on)` are the settings that `posgap mitigate` tries,
    from the model itself and some of its prompts. `written(config_json, settings)` is a model's config.json with the
    mitigation in it; where it is None, the mitigation is listed under posgap's own key, and `load_model` applies it.
    `alone` says that each prompt must be read whole, none from another's cached beginning, in a batch of its own.
    """

    apply: "Callable[[PreTrainedModel, Any], Undo]"
    neutral: "Callable[[PretrainedConfig], Settings | None]"
    tried: "Callable[[TriedOn], Sequence[Settings]]"
    written: Callable[[Mapping[str, Any], Any], dict[str, Any]] | None = None
    alone: bool = False
    of_model: ClassVar[bool] = True


@dataclass(frozen=True)
class PromptMitigation(Mitigation):
    """A mitigation of what is asked; the model stays as it is.

    `orders(asked, settings)` are the orders of documents in which the question is asked, each a prompt. Of the
    responses to them `chosen(responses)` says which one, by index, is the answer. `tried()` are the settings that
    `posgap mitigate` tries. `needs_ranks` says that examples must have a retriever's order. `code(settings)` is what an
    application does, as functions of plain Python whose `passages` are a list of whatever kind, the most relevant
    first; empty where it cannot.
    """

    orders: "Callable[[ReorderInput, Any], Sequence[Sequence[Document]]]"
    chosen: Callable[[Sequence[str]], int]
    tried: Callable[[], Sequence[Settings]]
    needs_ranks: bool = False
    code: Callable[[Any], str] = lambda settings: ""


@dataclass(frozen=True)
class TriedOn:
    """A model, and prompts as token ids on which a mitigation may measure it before it proposes settings.

    `search_factors()` searches for RoPE factors, one per layer, as `posgap scale search` does, and returns its best
    candidates, the best first.
    """

    model: "PreTrainedModel"
    prompts: Sequence[Sequence[int]]
    search_factors: Callable[[], Sequence[Sequence[float]]] = lambda: []


@dataclass(frozen=True)
class ReorderInput:
    """A question and its documents in the order in which they are given to a mitigation."""

    example: "AnyExample"
    documents: "Sequence[Document]"
    seed: int
