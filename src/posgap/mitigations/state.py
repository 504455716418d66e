"""The mitigations of a model: a stack, each with its settings and a function that undoes it.

They are undone in reverse order, so that each finds the model in the state that it left.
"""

from collections.abc import Sequence
from typing import NamedTuple

from posgap.foundation.heavy_types import PreTrainedModel
from posgap.mitigations.mitigation import ModelMitigation, Settings, Undo
from posgap.models import MITIGATIONS_KEY

_ATTRIBUTE = "_posgap_in_force"


class StackEntry(NamedTuple):
    """An applied mitigation."""

    mitigation: ModelMitigation
    settings: Settings
    undo: Undo


def in_force(model: PreTrainedModel) -> dict[str, Settings]:
    """Returns the settings of the applied mitigations, by name, in the order of their application."""
    return {entry.mitigation.name: entry.settings for entry in _stack(model)}


def needs_own_batch(model: PreTrainedModel) -> bool:
    """Returns whether an applied mitigation needs each prompt read whole, in a batch of its own."""
    return any(entry.mitigation.needs_own_batch for entry in _stack(model))


def had_any(model: PreTrainedModel) -> bool:
    """Returns whether a mitigation is applied, or ever was."""
    return hasattr(model, _ATTRIBUTE)


def put_on_top(model: PreTrainedModel, mitigation: ModelMitigation, settings: Settings) -> None:
    """Applies a mitigation on top of the others."""
    undo = mitigation.apply_to(model, settings)
    _set_stack(model, [*_stack(model), StackEntry(mitigation, settings, undo)])


def take_off(model: PreTrainedModel, name: str) -> list[StackEntry]:
    """Undoes a mitigation and all that were applied after it, and returns them, this one first; none if it is not
    applied."""
    stack = _stack(model)
    names = [entry.mitigation.name for entry in stack]
    at = names.index(name) if name in names else len(stack)
    for entry in reversed(stack[at:]):
        entry.undo()
    _set_stack(model, stack[:at])
    return stack[at:]


def _stack(model: PreTrainedModel) -> list[StackEntry]:
    return list(getattr(model, _ATTRIBUTE, []))


def _set_stack(model: PreTrainedModel, stack: Sequence[StackEntry]) -> None:
    """Sets the applied mitigations; the config lists what `load_model` must apply."""
    setattr(model, _ATTRIBUTE, list(stack))
    listed = [entry.mitigation.list_entry(entry.settings) for entry in stack if entry.mitigation.is_listed]
    if listed:
        setattr(model.config, MITIGATIONS_KEY, listed)
    elif hasattr(model.config, MITIGATIONS_KEY):
        delattr(model.config, MITIGATIONS_KEY)
