"""The mitigations of a model in memory: applied, replaced, removed, and recorded in its config."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from posgap.foundation.errors import BadOption, PosgapError
from posgap.foundation.files import parse_as
from posgap.mitigations.registry import MITIGATIONS
from posgap.mitigations.state import had_any, put_on_top, take_off
from posgap.models import CONFIG_KEY, MITIGATIONS_KEY
from posgap.models.closing import read_config
from posgap.models.factors import check_factors, config_factors
from posgap.models.patching import name_of

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

    from posgap.mitigations.mitigation import ModelMitigation, Settings


def apply_mitigation(model: "PreTrainedModel", name: str, settings: "Settings | Mapping[str, Any]") -> None:
    """Applies a mitigation to `model`, replacing its own earlier settings if it is already applied.

    Raises `PosgapError` if the model's family cannot have it; the model is then unchanged.
    """
    mitigation = model_mitigation(name)
    given = settings if isinstance(settings, mitigation.settings) else parse_as(mitigation.settings, settings, name)
    above = take_off(model, name)
    try:
        put_on_top(model, mitigation, given)
    except PosgapError:
        for each in above:
            put_on_top(model, each.mitigation, each.settings)
        raise
    for each in above:
        if each.mitigation.name != name:
            put_on_top(model, each.mitigation, each.settings)


def remove_mitigation(model: "PreTrainedModel", name: str) -> None:
    """Removes a mitigation; does nothing if it is not applied."""
    for each in take_off(model, name):
        if each.mitigation.name != name:
            put_on_top(model, each.mitigation, each.settings)


def scale_model(model: "PreTrainedModel", factors: Sequence[float] | None = None) -> "PreTrainedModel":
    """Scales `model` in place by `factors`, or by those its config names, and returns it.

    Factors are one per layer `[L]`. The config names them from then on, so the model is saved scaled. A model without
    factors in its config is returned unchanged. Scaling a scaled model replaces its factors.
    """
    if factors is None:
        _take_from_folder(model)
        factors = config_factors(model.config)
    if factors is None:
        return model
    check_factors(factors, model.config.get_text_config().num_hidden_layers, name_of(model))
    apply_mitigation(model, "lpes", {"factors": list(factors)})
    return model


def load_model(path: str, dtype: str = "auto", compute: str = "") -> "PreTrainedModel":
    """Loads a causal language model from safetensors, in evaluation mode, on the CPU, with the RoPE factors and all
    other mitigations that its config names.

    Arguments and errors are those of `posgap.models.loading.load_as_trained`.
    """
    from posgap.models.loading import load_as_trained  # late: it needs torch

    return apply_configured(load_as_trained(path, dtype, compute))


def apply_configured(model: "PreTrainedModel") -> "PreTrainedModel":
    """Applies the RoPE factors and mitigations of the model's config, and returns the model."""
    _take_from_folder(model)
    also = listed_mitigations(model.config, name_of(model))  # before anything is applied and listed
    scale_model(model)
    for entry in also:
        apply_mitigation(model, entry["name"], entry["settings"])
    return model


def _take_from_folder(model: "PreTrainedModel") -> None:
    """Copies what the folder's `config.json` names into the config of a model that never had a mitigation.

    For models that also see (Qwen3.5, Llama 4), transformers makes a text-only model with a part of the folder's
    config, and drops what stands beside that part.
    """
    file = Path(model.name_or_path or "") / "config.json"
    if had_any(model) or not model.name_or_path or not file.is_file():
        return
    whole = read_config(file.parent)
    if whole.get("model_type") == model.config.model_type:
        return
    for key in (CONFIG_KEY, MITIGATIONS_KEY):
        if key in whole:
            setattr(model.config, key, whole[key])


def listed_mitigations(config: "PretrainedConfig", where: str = "config.json") -> list[dict[str, Any]]:
    """The mitigations that a model's config lists under posgap's key: `name` and `settings` of each."""
    listed = getattr(config, MITIGATIONS_KEY, None) or []
    keys = {"name", "settings"}
    if not isinstance(listed, list) or not all(isinstance(each, dict) and set(each) == keys for each in listed):
        raise PosgapError(f"{where}: {MITIGATIONS_KEY} must be a list of names with their settings; apply them again")
    return listed


def model_mitigation(name: str) -> "ModelMitigation":
    """Returns the mitigation of that name. Raises `PosgapError` if it changes prompts, not models."""
    mitigation = MITIGATIONS[name]
    if not mitigation.of_model:
        raise BadOption(f"{name}: changes prompts, not models; sweep with --mitigation {name}")
    return cast("ModelMitigation", mitigation)
