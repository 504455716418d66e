"""Position interpolation: all positions divided by one number, through the model's own `rope_parameters`."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from posgap.mitigations.mitigation import ModelMitigation, TriedOn, Undo
from posgap.mitigations.rope_parameters import Factor, put, require_unscaled, written

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

FACTORS = (1.25, 1.5, 2.0)


def _change(config: "PretrainedConfig", parameters: Mapping[str, Any], factor: float) -> dict[str, Any]:
    require_unscaled(config, parameters, "linear")
    return {**parameters, "rope_type": "linear", "factor": factor}


def _apply(model: "PreTrainedModel", settings: Factor) -> Undo:
    return put(model, "linear", _change, settings.factor)


def _written(config_json: Mapping[str, Any], settings: Factor) -> dict[str, Any]:
    return written(config_json, "linear", _change, settings.factor)


def _tried(tried_on: TriedOn) -> Sequence[Factor]:
    return [Factor(factor=factor) for factor in FACTORS]


LINEAR = ModelMitigation(
    name="linear",
    help="positions divided by a factor, in the model's own configuration",
    level="config",
    source="Chen et al. 2023, section 2.3, equation 4, arXiv 2306.15595",
    cost="nothing",
    served_by=("anything",),
    settings=Factor,
    apply=_apply,
    neutral=lambda config: Factor(factor=1),
    tried=_tried,
    written=_written,
)
