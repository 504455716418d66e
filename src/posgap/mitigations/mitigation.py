"""What every mitigation says of itself, so that one sweep can try them all.

A mitigation works on a model (its config, its positions, its attention, its hidden states) or on what is asked of it
(the order of a prompt's documents, several prompts for one answer). Its `Settings` are what can be chosen about it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict

from posgap.foundation.choices import Parameters

if TYPE_CHECKING:
    from torch import Tensor
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
    `price` is about how many times as long an answer takes: the comparison tries the low ones first. `order_free` says
    that prompts have the same order whatever order is given, but for documents that are equally relevant, so that a gap
    of 0 is none of its merits.
    """

    name: str
    help: str
    level: Level
    source: str
    cost: str
    served_by: tuple[str, ...]
    settings: type[Settings]
    price: float = field(default=1.0, kw_only=True)
    order_free: bool = field(default=False, kw_only=True)
    parameters: ClassVar[type[Parameters]] = Parameters  # of its search; settings themselves are given as JSON
    of_model: ClassVar[bool] = False
    needs_rope: ClassVar[bool] = False  # and so a form that names it is refused for other models before a run

    def search(
        self, parameters: Any, model: "PreTrainedModel | None", fitness: Callable[[Any], float], seed: int
    ) -> None:
        """Looks for more settings than those that it has tried, by the `fitness` of each in points, which raises what
        ends the search where time is over. Without a search of its own it looks for none."""

    def curve(self, settings: Any) -> str:
        """On what curve over depth its settings lie, in words; empty for settings without such."""
        return ""


@dataclass(frozen=True)
class ModelMitigation(Mitigation):
    """A mitigation of a model in memory; `posgap.mitigations.in_force` applies, replaces, removes and records it.

    `apply(model, settings)` puts it in force and returns what takes it back. It raises `PosgapError`, before it has
    changed anything, with the true reason why a family cannot have it. `neutral(config)` are settings that change
    nothing, to the bit; None where there are none. `tried(tried_on)` are the settings that `posgap mitigate` tries,
    from the model itself and some of its prompts. `written(config_json, settings)` is a model's config.json with the
    mitigation in it; where it is None, the mitigation is listed under posgap's own key, and `load_model` applies it.
    `in_weights(model, settings)` are tensors by the name of the parameter that each multiplies, so that a model whose
    files have the products needs no more of posgap; None where weights cannot stand for the mitigation.
    `whole` says that prompts must be read whole, none from another's cached beginning, and `alone` that each must be
    read in a batch of its own. `spans` says that it must be told where a prompt's documents stand
    (`posgap.models.layout.during_forward`): prompts then come from a builder with `marks_documents`, and are read
    whole and alone. `forces` says that what it tries comes of forcing right responses upon the model, as
    `TriedOn.questions` has them.
    """

    apply: "Callable[[PreTrainedModel, Any], Undo]"
    neutral: "Callable[[PretrainedConfig], Settings | None]"
    tried: "Callable[[TriedOn], Sequence[Settings]]"
    written: Callable[[Mapping[str, Any], Any], dict[str, Any]] | None = None
    in_weights: "Callable[[PreTrainedModel, Any], Mapping[str, Tensor]] | None" = None
    whole: bool = False
    alone: bool = False
    spans: bool = False
    forces: bool = False
    of_model: ClassVar[bool] = True


@dataclass(frozen=True)
class PromptMitigation(Mitigation):
    """A mitigation of what is asked; the model stays as it is.

    `orders(asked, settings)` are the orders of documents in which the question is asked, each a prompt. Of the
    responses to them `chosen(responses)` says which one, by index, is the answer. `tried()` are the settings that
    `posgap mitigate` tries. `needs_attention` says that `asked.attention` must be there: a model in memory;
    `needs_ranks` that examples have a retriever's order. `code(settings)` is what an application does, as functions of
    plain Python whose `passages` are a list of whatever kind, the most relevant first; empty where it cannot.
    """

    orders: "Callable[[Asked, Any], Sequence[Sequence[Document]]]"
    chosen: Callable[[Sequence[str]], int]
    tried: Callable[[], Sequence[Settings]]
    needs_attention: bool = False
    needs_ranks: bool = False
    code: Callable[[Any], str] = lambda settings: ""


@dataclass(frozen=True)
class TriedOn:
    """A model, and prompts as token ids on which a mitigation may measure it before it proposes settings.

    `questions` are some prompts at every placement, each with its only right response, as token ids; none where
    responses have no single right wording.
    """

    model: "PreTrainedModel"
    prompts: Sequence[Sequence[int]]
    questions: Sequence[tuple[Sequence[int], Sequence[int]]] = ()


@dataclass(frozen=True)
class Asked:
    """A question and its documents in the order in which they are given to a mitigation.

    `attention(documents)`, where a model in memory is asked, is how much of the attention of the prompt's last token
    falls on each of the documents in that order, averaged over layers and heads: `[n_docs]`.
    """

    example: "AnyExample"
    documents: "Sequence[Document]"
    seed: int
    attention: "Callable[[Sequence[Document]], Sequence[float]] | None" = None
