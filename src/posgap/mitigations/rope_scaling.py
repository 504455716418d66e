"""The scalings of RoPE that a model's own configuration carries, so that whatever loads the folder has them: position
interpolation (`linear`), NTK-aware scaling (`ntk`) and YaRN (`yarn`).

`linear` divides all positions by one number.

`ntk` enlarges the base of RoPE, so that the slowest frequency is divided by the factor, as position interpolation
divides it, and the fastest stays as it is: with d dimensions that are turned, base' = base * factor ** (d / (d - 2)).
Whatever scaling the model's RoPE has already works on the larger base. A saved model has its new base, and beside it
the factor, since nothing else shows that the base was ever another and a second factor would come on top of the first.

`yarn` interpolates slow frequencies, leaves fast ones alone, and sharpens attention.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from posgap.foundation.errors import PosgapError
from posgap.mitigations.mitigation import ModelMitigation, Undo
from posgap.mitigations.rope_parameters import (
    Change,
    Factor,
    put,
    require_bases,
    require_unscaled,
    rotary_dimensions,
    written,
)
from posgap.models import NTK_KEY
from posgap.models.patching import name_of

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

# Of these it is known that frequency i is base ** (-2 i / d), before whatever else they do.
_KINDS = ("default", "linear", "dynamic", "yarn", "longrope", "llama3")


class Yarn(Factor):
    """`factor` by which slow frequencies are divided; those that turn often within `original_max_position_embeddings`
    tokens are not, the length that the model was trained for (None: its `max_position_embeddings`)."""

    original_max_position_embeddings: Annotated[int, Field(gt=0)] | None = None


def _linear(config: "PretrainedConfig", parameters: Mapping[str, Any], factor: float) -> dict[str, Any]:
    require_unscaled(config, parameters, "linear")
    return {**parameters, "rope_type": "linear", "factor": factor}


def linear_for_all_layers(config_json: Mapping[str, Any], factor: float) -> dict[str, Any] | None:
    """A model's config.json with one linear factor, where that divides the positions of all layers; None where it
    cannot: types of layers have a RoPE each, it is scaled already, or there is none, or the factor is less than 1."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    try:
        result = written(config_json, "linear", _linear, factor, longer=False)
    except PosgapError:
        return None
    config: Any = CONFIG_MAPPING[config_json["model_type"]].from_dict(copy.deepcopy(result)).get_text_config()
    return result if factor > 1 and config.rope_parameters.get("rope_type") == "linear" else None


def _ntk(config: "PretrainedConfig", parameters: Mapping[str, Any], factor: float) -> dict[str, Any]:
    name = f"{config.name_or_path or config.model_type}: ntk"
    if parameters["rope_type"] not in _KINDS:
        raise PosgapError(f"{name}: how its RoPE ({parameters['rope_type']}) follows from its base is not known here")
    require_bases(config, parameters, "ntk")
    turned = rotary_dimensions(config, parameters)
    return {**parameters, "rope_theta": parameters["rope_theta"] * factor ** (turned / (turned - 2))}


def _yarn(
    original_length: int | None, config: "PretrainedConfig", parameters: Mapping[str, Any], factor: float
) -> dict[str, Any]:
    require_unscaled(config, parameters, "yarn")
    text: Any = config
    original = original_length or getattr(text, "max_position_embeddings", None)
    if original is None:
        raise PosgapError(
            f"{text.name_or_path or text.model_type}: yarn: its configuration has no max_position_embeddings; give "
            "original_max_position_embeddings"
        )
    return {**parameters, "rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original}


def _scaling(
    name: str,
    help: str,
    source: str,
    factors: Sequence[float],
    change_of: Callable[[Any], Change],
    settings: type[Factor] = Factor,
) -> ModelMitigation:
    """A mitigation by changed `rope_parameters`: `change_of(settings)` changes them, and `factors` are tried."""
    return ModelMitigation(
        name=name,
        help=help,
        level="config",
        source=source,
        cost="nothing",
        served_by=("anything",),
        settings=settings,
        apply=lambda model, chosen: put(model, name, change_of(chosen), chosen.factor),
        neutral=lambda config: settings(factor=1),
        tried=lambda tried_on: [settings(factor=factor) for factor in factors],
        written=lambda config_json, chosen: written(config_json, name, change_of(chosen), chosen.factor),
    )


def _apply_ntk(model: "PreTrainedModel", settings: Factor) -> Undo:
    if settings.factor == 1:
        return put(model, "ntk", _ntk, 1)
    _require_own_base(getattr(model.config, NTK_KEY, None), name_of(model))
    undo_base = put(model, "ntk", _ntk, settings.factor)
    setattr(model.config, NTK_KEY, settings.factor)

    def undo() -> None:
        undo_base()
        delattr(model.config, NTK_KEY)

    return undo


def _written_ntk(config_json: Mapping[str, Any], settings: Factor) -> dict[str, Any]:
    made = written(config_json, "ntk", _ntk, settings.factor)
    if settings.factor == 1:
        return made
    _require_own_base(config_json.get(NTK_KEY), "config.json")
    return {**made, NTK_KEY: settings.factor}


def _require_own_base(factor: float | None, where: str) -> None:
    if factor is not None:
        raise PosgapError(
            f"{where}: ntk: its base is a larger one already, by a factor of {factor:g}; apply it to the model that it "
            "was made of"
        )


LINEAR = _scaling(
    "linear",
    "positions divided by a factor, in the model's own configuration",
    "Chen et al. 2023, section 2.3, equation 4, arXiv 2306.15595",
    (1.25, 1.5, 2.0),
    lambda settings: _linear,
)
NTK = replace(
    _scaling(
        "ntk",
        "a larger base of RoPE, in the model's own configuration",
        "bloc97 2023, NTK-aware scaled RoPE; Peng et al. 2023, section 3.1, arXiv 2309.00071",
        (1.5, 2.0, 4.0),
        lambda settings: _ntk,
    ),
    apply=_apply_ntk,
    written=_written_ntk,
)
YARN = _scaling(
    "yarn",
    "slow frequencies of RoPE interpolated and attention sharpened, in the model's own configuration",
    "Peng et al. 2023, sections 3.2 to 3.4, arXiv 2309.00071",
    (1.5, 2.0, 4.0),
    lambda settings: partial(_yarn, settings.original_max_position_embeddings),
    Yarn,
)
