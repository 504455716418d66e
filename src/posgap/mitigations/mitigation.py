"""Declares what every mitigation says about itself, so that one sweep can try them all.

A mitigation works on a model (its config, its positions) or on its prompts (the order of their documents, several
prompts for one answer). Its `Settings` are what can be chosen about it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict

from posgap.foundation.registry import Parameters
from posgap.models import MITIGATIONS_KEY

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

    from posgap.tasks.examples import AnyExample, Document

Level = Literal["config", "positions", "attention", "hidden states", "prompt", "decoding"]
# Takes a mitigation's effect back.
Undo = Callable[[], None]


class Settings(BaseModel):
    """The settings of a mitigation: JSON, as in a model's config.json and for `posgap mitigate`."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)


class Mitigation:
    """A remedy by its name; posgap has one instance of each class.

    `source` is the paper, with section or equation. `cost` says in a phrase what it adds to a served prompt's own work;
    "nothing" if nothing. `served_by` are the programs that serve it: "anything" that loads the model folder, or some of
    "transformers" (with posgap), "vllm" (with posgap's plugin), "endpoints" (posgap asks). `order_free` says that
    prompts have the same order whatever the given one, except for equally relevant documents, so a gap of 0 is no
    merit. A form that names one that `needs_rope` is refused for a model without RoPE, before a run.
    """

    name: str
    help: str
    level: Level
    source: str
    cost: str
    served_by: tuple[str, ...]
    settings: type[Settings]
    order_free: bool = False
    needs_rope: bool = False
    parameters: type[Parameters] = Parameters  # none: settings are given as JSON
    of_model: ClassVar[bool] = False


class ModelMitigation(Mitigation):
    """A mitigation of a model in memory; `posgap.mitigations.in_force` applies, replaces, removes and records it.

    `needs_own_batch` says that each prompt must be read whole, none from another's cached beginning, in a batch of its
    own. `is_listed` says that the config names the mitigation under posgap's own key, for `load_model` to apply.
    """

    needs_own_batch: bool = False
    is_listed: bool = True
    of_model: ClassVar[bool] = True

    def apply_to(self, model: "PreTrainedModel", settings: Any) -> Undo:
        """Applies the mitigation and returns a function that undoes it. Raises `PosgapError`, with the model unchanged,
        with the true reason if a family cannot have it."""
        raise NotImplementedError

    def neutral_settings(self, config: "PretrainedConfig") -> Settings | None:
        """Returns settings that change nothing, to the bit; None if there are none."""
        raise NotImplementedError

    def propose_settings(self, proposal: "ProposalInput") -> Sequence[Settings]:
        """Returns the settings that `posgap mitigate` tries."""
        raise NotImplementedError

    def write_config(self, config_json: Mapping[str, Any], settings: Any) -> dict[str, Any]:
        """Returns a model's config.json with the mitigation in it; an override must set `is_listed` to False."""
        listed = [each for each in config_json.get(MITIGATIONS_KEY) or [] if each["name"] != self.name]
        listed.append(self.list_entry(settings))
        return {**config_json, MITIGATIONS_KEY: listed}

    def list_entry(self, settings: Settings) -> dict[str, Any]:
        """Returns how a config names the mitigation under posgap's own key."""
        return {"name": self.name, "settings": settings.model_dump(mode="json")}


class PromptMitigation(Mitigation):
    """A mitigation of prompts; the model is unchanged.

    `needs_ranks` says that examples must have a retriever's order. `call` is how an application asks by its
    `write_code`, in place of `answer(question, passages)`; `text_of` is posgap's.
    """

    needs_ranks: bool = False
    call: str = "answer(question, reorder(passages))"

    def order_documents(self, given: "ReorderInput", settings: Any) -> "Sequence[Sequence[Document]]":
        """Returns the orders of documents in which to ask the question, each a prompt."""
        raise NotImplementedError

    def word_question(self, question: str) -> str:
        """Returns the question as the mitigation words it."""
        return question

    def read_response(self, response: str) -> str:
        """Returns the part of a response that is the answer to the question in its own words."""
        return response

    def choose_response(self, responses: Sequence[str]) -> int:
        """Returns which of the responses to those prompts is the answer, by index."""
        return 0

    def list_settings(self) -> Sequence[Settings]:
        """Returns the settings that `posgap mitigate` tries."""
        return [self.settings()]

    def write_code(self, settings: Any) -> str:
        """Returns an application's code for it, as plain Python functions with `passages`, a list of any kind, the most
        relevant first; empty if it has none."""
        return ""


@dataclass(frozen=True)
class ProposalInput:
    """A model, and prompts as token ids on which a mitigation may measure it before it proposes settings.

    `search_factors()` searches for RoPE factors, one per layer, as `posgap scale search` does, and returns its best
    candidates, the best first.
    """

    model: "PreTrainedModel"
    prompts: Sequence[Sequence[int]]
    search_factors: Callable[[], Sequence[Sequence[float]]] = lambda: []


@dataclass(frozen=True)
class ReorderInput:
    """A question and its documents in the order in which a mitigation gets them."""

    example: "AnyExample"
    documents: "Sequence[Document]"
    seed: int
