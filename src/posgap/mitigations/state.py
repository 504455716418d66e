"""What is in force in a model: a stack of mitigations, each with its settings and how it is undone."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from posgap.models import MITIGATIONS_KEY

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from posgap.mitigations.mitigation import ModelMitigation, Settings, Undo

_ATTRIBUTE = "_posgap_in_force"


class _InForce(NamedTuple):
    mitigation: "ModelMitigation"
    settings: "Settings"
    undo: "Undo"


def in_force(model: "PreTrainedModel") -> dict[str, "Settings"]:
    """The settings of the mitigations in force, by name, in the order in which they were applied."""
    return {each.mitigation.name: each.settings for each in _stack(model)}


def needs_own_batch(model: "PreTrainedModel") -> bool:
    """Returns whether a mitigation in force has each prompt read whole, in a batch of its own."""
    return any(each.mitigation.alone for each in _stack(model))


def _stack(model: "PreTrainedModel") -> list[_InForce]:
    return list(getattr(model, _ATTRIBUTE, []))


def _set(model: "PreTrainedModel", stack: Sequence[_InForce]) -> None:
    """Sets what is in force; the config lists what `load_model` must apply."""
    setattr(model, _ATTRIBUTE, list(stack))
    listed = [
        {"name": each.mitigation.name, "settings": each.settings.model_dump(mode="json")}
        for each in stack
        if not each.mitigation.written
    ]
    if listed:
        setattr(model.config, MITIGATIONS_KEY, listed)
    elif hasattr(model.config, MITIGATIONS_KEY):
        delattr(model.config, MITIGATIONS_KEY)
