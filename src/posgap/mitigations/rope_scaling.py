"""Scalings of RoPE in a model's own configuration, which any loader of the folder applies: position interpolation
(`linear`), NTK-aware scaling (`ntk`) and YaRN (`yarn`).

`linear` divides all positions by one number.

`ntk` enlarges the base of RoPE: it divides the slowest frequency by the factor, like position interpolation, and keeps
the fastest. With d rotated dimensions, base' = base * factor ** (d / (d - 2)). Any scaling that the model's RoPE has
already works on the larger base. A saved model has its new base, and beside it the factor: nothing else shows that the
base was changed, and a second factor would multiply the first.

`yarn` interpolates slow frequencies, leaves fast ones alone, and sharpens attention.
"""

import copy
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any

from pydantic import Field

from posgap.foundation.errors import PosgapError
from posgap.foundation.heavy_types import PretrainedConfig, PreTrainedModel
from posgap.mitigations.mitigation import ModelMitigation, ProposalInput, Undo
from posgap.mitigations.rope_parameters import (
    Change,
    Factor,
    put_rope,
    require_bases,
    require_unscaled,
    rotary_dimensions,
    write_rope,
)
from posgap.models import NTK_KEY
from posgap.models.patching import name_of

# For these, frequency i is known to be base ** (-2 i / d), before anything else that they do.
_KINDS = ("default", "linear", "dynamic", "yarn", "longrope", "llama3")


class RopeScaling(ModelMitigation):
    """A mitigation by changed `rope_parameters`. `factors` are tried."""

    level = "config"
    cost = "nothing"
    served_by = ("anything",)
    settings: type[Factor] = Factor
    is_listed = False
    factors: tuple[float, ...]

    def change_with(self, settings: Any) -> Change:
        """Returns what changes the parameters of one RoPE."""
        raise NotImplementedError

    def apply_to(self, model: PreTrainedModel, settings: Factor) -> Undo:
        return put_rope(model, self.name, self.change_with(settings), settings.factor)

    def neutral_settings(self, config: PretrainedConfig) -> Factor:
        return self.settings(factor=1)

    def propose_settings(self, proposal: ProposalInput) -> Sequence[Factor]:
        return [self.settings(factor=factor) for factor in self.factors]

    def write_config(self, config_json: Mapping[str, Any], settings: Factor) -> dict[str, Any]:
        return write_rope(config_json, self.name, self.change_with(settings), settings.factor)


class Linear(RopeScaling):
    name = "linear"
    help = "positions divided by a factor, in the model's own configuration"
    source = "Chen et al. 2023, section 2.3, equation 4, arXiv 2306.15595"
    factors = (1.25, 1.5, 2.0)

    def change_with(self, settings: Factor) -> Change:
        return _change_linear


def _change_linear(config: PretrainedConfig, parameters: Mapping[str, Any], factor: float) -> dict[str, Any]:
    require_unscaled(config, parameters, "linear")
    return {**parameters, "rope_type": "linear", "factor": factor}


def linear_for_all_layers(config_json: Mapping[str, Any], factor: float) -> dict[str, Any] | None:
    """Returns a model's config.json with one linear factor, if that divides the positions of all layers; None if types
    of layers have their own RoPE, if it is scaled already, if there is none, or if the factor is less than 1."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    try:
        result = write_rope(config_json, "linear", _change_linear, factor, longer=False)
    except PosgapError:
        return None
    config: Any = CONFIG_MAPPING[config_json["model_type"]].from_dict(copy.deepcopy(result)).get_text_config()
    return result if factor > 1 and config.rope_parameters.get("rope_type") == "linear" else None


class Ntk(RopeScaling):
    name = "ntk"
    help = "a larger base of RoPE, in the model's own configuration"
    source = "bloc97 2023, NTK-aware scaled RoPE; Peng et al. 2023, section 3.1, arXiv 2309.00071"
    factors = (1.5, 2.0, 4.0)

    def change_with(self, settings: Factor) -> Change:
        return _enlarge_base

    def apply_to(self, model: PreTrainedModel, settings: Factor) -> Undo:
        if settings.factor == 1:
            return super().apply_to(model, settings)
        _require_own_base(getattr(model.config, NTK_KEY, None), name_of(model))
        undo_base = super().apply_to(model, settings)
        setattr(model.config, NTK_KEY, settings.factor)

        def undo() -> None:
            undo_base()
            delattr(model.config, NTK_KEY)

        return undo

    def write_config(self, config_json: Mapping[str, Any], settings: Factor) -> dict[str, Any]:
        changed = super().write_config(config_json, settings)
        if settings.factor == 1:
            return changed
        _require_own_base(config_json.get(NTK_KEY), "config.json")
        return {**changed, NTK_KEY: settings.factor}


def _enlarge_base(config: PretrainedConfig, parameters: Mapping[str, Any], factor: float) -> dict[str, Any]:
    name = f"{config.name_or_path or config.model_type}: ntk"
    if parameters["rope_type"] not in _KINDS:
        raise PosgapError(
            f"{name}: posgap does not know how its RoPE ({parameters['rope_type']}) follows from its base"
        )
    require_bases(config, parameters, "ntk")
    turned = rotary_dimensions(config, parameters)
    return {**parameters, "rope_theta": parameters["rope_theta"] * factor ** (turned / (turned - 2))}


def _require_own_base(factor: float | None, where: str) -> None:
    if factor is not None:
        raise PosgapError(
            f"{where}: ntk: its base is already larger by a factor of {factor:g}; apply ntk to the model that "
            "it was made from"
        )


class YarnSettings(Factor):
    """`factor` by which slow frequencies are divided. Those that turn often within `original_max_position_embeddings`
    tokens, the length of the model's training (None: its `max_position_embeddings`), are not."""

    original_max_position_embeddings: Annotated[int, Field(gt=0)] | None = None


class Yarn(RopeScaling):
    name = "yarn"
    help = "slow frequencies of RoPE interpolated and attention sharpened, in the model's own configuration"
    source = "Peng et al. 2023, sections 3.2 to 3.4, arXiv 2309.00071"
    settings = YarnSettings
    factors = (1.5, 2.0, 4.0)

    def change_with(self, settings: YarnSettings) -> Change:
        return partial(_change_yarn, settings.original_max_position_embeddings)


def _change_yarn(
    original_length: int | None, config: PretrainedConfig, parameters: Mapping[str, Any], factor: float
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


LINEAR = Linear()
NTK = Ntk()
YARN = Yarn()
