"""Changes a model's RoPE through its own `rope_parameters`, so that any loader of the model folder has it without
posgap.

In memory the model's rotary embeddings are made anew from the changed configuration, as at loading.
"""

import copy
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from posgap.foundation.errors import PosgapError, first_line
from posgap.mitigations.mitigation import Settings, Undo
from posgap.models.patching import forward_few_tokens, name_of, undo_all

if TYPE_CHECKING:
    from torch import Tensor, nn
    from transformers import PretrainedConfig, PreTrainedModel

# The parameters of one RoPE, `(config, parameters, factor)`, with a factor other than 1.
Change = Callable[["PretrainedConfig", Mapping[str, Any], float], dict[str, Any]]
_FULL = "full_attention"
_EFFECT = 2.0  # a factor that tests whether a model follows its rope_parameters at all


class Factor(Settings):
    """`factor` by which the positions that a model can tell apart are stretched; 1 changes nothing."""

    factor: Annotated[float, Field(ge=1)]


def put_rope(model: "PreTrainedModel", name: str, change: Change, factor: float) -> Undo:
    """Makes `model` rotate queries and keys by changed `rope_parameters`, and read that many more tokens; returns a
    function that undoes both.

    Raises `PosgapError`, with the model unchanged, if its RoPE is not made from `rope_parameters`, or ignores them.
    """
    rotaries = _followed_rotaries(model, name, change)
    config: Any = model.config.get_text_config()
    before = getattr(config, "max_position_embeddings", None)
    length = _context_with(config, _change_parameters(config, f"{name_of(model)}: {name}", change, factor), factor)
    undo = _remake_rotaries(model, name, rotaries, change, factor)
    if length == before:
        return undo
    config.max_position_embeddings = length
    return undo_all([undo, lambda: setattr(config, "max_position_embeddings", before)])


def _followed_rotaries(model: "PreTrainedModel", name: str, change: Change) -> "list[nn.Module]":
    """The rotary embeddings that a model's `rope_parameters` make, after a look whether a changed one changes what the
    model computes; `PosgapError` if it does not, or if there are none."""
    import torch

    where = f"{name_of(model)}: {name}"
    rotaries = [module for module in model.modules() if _is_rotary(module, model.config.get_text_config())]
    if not rotaries:
        raise PosgapError(f"{where}: its rope_parameters make no rotary embedding")
    unchanged = _logits(model)
    undo = _remake_rotaries(model, name, rotaries, change, _EFFECT)
    try:
        same = torch.equal(_logits(model), unchanged)
    except (RuntimeError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise PosgapError(f"{where}: it cannot be read with such rope_parameters: {_line(error)}") from None
    finally:
        undo()
    if same:
        raise PosgapError(
            f"{where}: its attention does not follow its rope_parameters (ALiBi, tables of another making, or no "
            "rotary positions)"
        )
    return rotaries


def write_rope(
    config_json: Mapping[str, Any], name: str, change: Change, factor: float, *, longer: bool = True
) -> dict[str, Any]:
    """Returns a config.json with changed `rope_parameters`; if it has the older names (`rope_theta`, `rope_scaling`),
    it keeps them for older programs. If `longer`, the model's length is multiplied too."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    made = CONFIG_MAPPING[config_json["model_type"]]
    config = made.from_dict(copy.deepcopy(dict(config_json)))
    text: Any = config.get_text_config()
    part = next((each for each in config.sub_configs if getattr(config, each, None) is text), None)
    wanted = _change_parameters(text, f"config.json: {name}", change, factor)
    own = dict(config_json if part is None else config_json[part])
    if "rope_parameters" not in own and not _by_type(text, wanted):
        old = {key: value for key, value in wanted.items() if key not in ("rope_theta", "partial_rotary_factor")}
        own |= {"rope_theta": wanted["rope_theta"], "rope_scaling": old if old["rope_type"] != "default" else None}
    else:
        own.pop("rope_scaling", None)  # which transformers would read in place of the other
        own["rope_parameters"] = wanted
    if longer and (length := _context_with(text, wanted, factor)) != getattr(text, "max_position_embeddings", None):
        own[text.attribute_map.get("max_position_embeddings", "max_position_embeddings")] = length
    result = own if part is None else {**config_json, part: own}
    read: Any = made.from_dict(copy.deepcopy(result)).get_text_config()
    if read.rope_parameters != wanted:
        raise PosgapError(f"config.json: {name}: transformers reads other rope_parameters from it than were written")
    return result


def require_unscaled(config: "PretrainedConfig", parameters: Mapping[str, Any], name: str) -> None:
    """`PosgapError` if a RoPE is scaled already, so that another scaling would take its place or add to it."""
    kind = parameters["rope_type"]
    if kind != "default":
        raise PosgapError(
            f"{config.name_or_path or config.model_type}: {name}: its RoPE is scaled already ({kind}); apply it to the "
            "model without that, or take ntk, which changes the base alone"
        )


def rotary_dimensions(config: "PretrainedConfig", parameters: Mapping[str, Any]) -> int:
    """The dimensions of a head that are turned, two by a frequency."""
    text: Any = config
    head = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    return int(head * (parameters.get("partial_rotary_factor") or 1.0))


def _context_with(config: Any, wanted: Mapping[str, Any], factor: float) -> int | None:
    """Returns the tokens that a model can read with the `rope_parameters` wanted: `factor` times those of its training,
    unless its RoPE is scaled already, since some kinds are made for that length."""
    declared = getattr(config, "max_position_embeddings", None)
    types = _by_type(config, wanted)
    unscaled = all(each["rope_type"] == "default" for each in _each(config.rope_parameters, types))
    if factor == 1 or not declared or not unscaled:
        return declared
    trained = min(each.get("original_max_position_embeddings", declared) for each in _each(wanted, types))
    return max(declared, int(trained * factor))


def _each(parameters: Mapping[str, Any], types: list[str]) -> list[Mapping[str, Any]]:
    """The parameters of each RoPE."""
    return [parameters[kind] for kind in types] or [parameters]


def _is_rotary(module: "nn.Module", config: Any) -> bool:
    """Whether a module makes rotary tables from this config; a vision tower's are made from another."""
    return "RotaryEmbedding" in type(module).__name__ and getattr(module, "config", None) is config


def _by_type(config: Any, parameters: Mapping[str, Any]) -> list[str]:
    """The types of layers that have a RoPE each, by the keys of `parameters`; empty if all layers have one."""
    return [key for key in config.nested_rope_parameter_keys(parameters) if parameters[key]]


def _change_parameters(config: Any, where: str, change: Change, factor: float) -> dict[str, Any]:
    """Returns the `rope_parameters` of a config with a factor. If each type of layer has its own RoPE, only the layers
    that see all tokens get the factor, as in Gemma 3; those with a window see only near tokens."""
    parameters = getattr(config, "rope_parameters", None)
    if not parameters:
        raise PosgapError(f"{where}: it has no rotary position embedding to scale")
    if factor == 1:
        return dict(parameters)
    types = _by_type(config, parameters)
    if not types:
        return change(config, parameters, factor)
    chosen = [_FULL] if _FULL in types else types
    return {**parameters, **{each: change(config, parameters[each], factor) for each in chosen}}


def _remake_rotaries(
    model: "PreTrainedModel", name: str, rotaries: "list[nn.Module]", change: Change, factor: float
) -> Undo:
    """Makes the rotary embeddings of a model anew, from its configuration with a factor; returns a function that undoes
    it."""
    config: Any = model.config.get_text_config()
    where = f"{name_of(model)}: {name}"
    before = getattr(config, "rope_parameters", None)
    try:
        wanted = _change_parameters(config, where, change, factor)
        if wanted == before:
            return lambda: None
        config.rope_parameters = {key: dict(each) if isinstance(each, dict) else each for key, each in wanted.items()}
        if hasattr(config, "validate_rope"):
            copy.deepcopy(config).validate_rope()  # as at saving or loading; it may fill in missing parameters
        made = [type(module)(config) for module in rotaries]  # type: ignore[call-arg]
    except (RuntimeError, ValueError, LookupError, TypeError, AttributeError) as error:
        config.rope_parameters = before
        raise PosgapError(f"{where}: its RoPE takes no such rope_parameters: {_line(error)}") from None
    if config.rope_parameters != wanted:  # a config that puts values of its own in their place
        config.rope_parameters = before
        raise PosgapError(f"{where}: its configuration replaces rope_parameters by its own")
    undone = list(map(_become, rotaries, made))
    return undo_all([*undone, lambda: setattr(config, "rope_parameters", before)])


def _become(module: "nn.Module", new: "nn.Module") -> Undo:
    """Gives a rotary embedding the tables of a new one. It stays the same module, since its `forward` may be
    wrapped."""
    device = next(module.buffers()).device
    before = _public(module)
    tables = dict(module._buffers)
    _set(module, before, _public(new), {key: _on(table, device) for key, table in new._buffers.items()})
    return lambda: _set(module, _public(module), before, tables)


def _on(table: "Tensor | None", device: Any) -> "Tensor | None":
    return None if table is None else table.to(device)


def _public(module: "nn.Module") -> dict[str, Any]:
    """Returns what a rotary embedding holds besides its buffers: kinds, gains, lengths."""
    return {key: value for key, value in vars(module).items() if key[0] != "_" and key not in ("forward", "training")}


def _set(module: "nn.Module", old: dict[str, Any], new: dict[str, Any], tables: "dict[str, Tensor | None]") -> None:
    for key in old:
        del vars(module)[key]
    vars(module).update(new)
    module._buffers.clear()
    module._buffers.update(tables)


def require_bases(config: "PretrainedConfig", parameters: Mapping[str, Any], name: str) -> None:
    """`PosgapError` if no base would change a frequency, since the only one is base ** 0."""
    if (turned := rotary_dimensions(config, parameters)) <= 2:
        raise PosgapError(
            f"{config.name_or_path or config.model_type}: {name}: of each head it turns {turned} dimension"
            f"{'s' * (turned != 1)}, so that no base changes their frequency"
        )


def _line(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"it asks for {error} in them"
    return first_line(error)


def _logits(model: "PreTrainedModel") -> "Tensor":
    """The logits of a few tokens."""
    return forward_few_tokens(model).logits
