"""Layer-specific scaling: one RoPE factor per layer, on a curve over depth that a search finds."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from posgap.foundation.errors import PosgapError
from posgap.mitigations.mitigation import ModelMitigation, Settings, TriedOn, Undo
from posgap.mitigations.state import in_force
from posgap.models import CONFIG_KEY
from posgap.models.factors import check_factors

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel


class LayerFactors(Settings):
    """`factors [L]`: layer l reads positions divided by factor l."""

    factors: list[Annotated[float, Field(gt=0)]]


def _apply(model: "PreTrainedModel", settings: LayerFactors) -> Undo:
    from posgap.models.layer_scaling import layer_scaling

    if "ms-poe-static" in in_force(model):
        raise PosgapError(f"{model.name_or_path}: lpes: its heads have factors (ms-poe-static); take those back first")
    check_factors(settings.factors, model.config.get_text_config().num_hidden_layers, model.name_or_path or "lpes")
    scaling = layer_scaling(model)
    scaling.set(settings.factors)
    setattr(model.config, CONFIG_KEY, settings.factors)

    def undo() -> None:
        scaling.set([1.0] * scaling.n_layers)
        delattr(model.config, CONFIG_KEY)

    return undo


def _ones(config: "PretrainedConfig") -> LayerFactors:
    return LayerFactors(factors=[1.0] * config.get_text_config().num_hidden_layers)


def _written(config_json: Mapping[str, Any], settings: LayerFactors) -> dict[str, Any]:
    return {**config_json, CONFIG_KEY: settings.factors}


def _tried(tried_on: TriedOn) -> Sequence[LayerFactors]:
    """Uniform factors; the curves between them are searched for."""
    n_layers = tried_on.model.config.get_text_config().num_hidden_layers
    return [LayerFactors(factors=[factor] * n_layers) for factor in (1.25, 1.5, 2.0)]


LPES = ModelMitigation(
    name="lpes",
    help="one RoPE factor per layer on a searched curve over depth",
    level="positions",
    source="Layer-specific positional embedding scaling, arXiv 2606.27705",
    cost="nothing",
    served_by=("transformers", "vllm"),
    settings=LayerFactors,
    apply=_apply,
    neutral=_ones,
    tried=_tried,
    written=_written,
)
