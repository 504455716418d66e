"""Layer-specific scaling: one RoPE factor per layer, on a curve over depth that a search finds.

It follows LPES (arXiv 2606.27705), for which only the abstract and a review were available, and an earlier paper of the
same group (arXiv 2503.04355). These describe a factor for each layer, a genetic algorithm, and Bezier curves. The
algorithm's tournaments, crossover and mutation, the bounds and the weights of positions are posgap's own.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field

from posgap.foundation.heavy_types import PretrainedConfig, PreTrainedModel
from posgap.mitigations.mitigation import ModelMitigation, ProposalInput, Settings, Undo
from posgap.mitigations.rope_scaling import linear_for_all_layers
from posgap.models import CONFIG_KEY
from posgap.models.factors import check_factors


class LayerFactors(Settings):
    """`factors [L]`: layer l reads positions divided by factor l."""

    factors: list[Annotated[float, Field(gt=0)]]


class LayerSpecificScaling(ModelMitigation):
    name = "lpes"
    help = "one RoPE factor per layer on a searched curve over depth"
    level = "positions"
    source = "after layer-specific positional embedding scaling, arXiv 2606.27705; the search is posgap's own"
    cost = "nothing"
    served_by = ("transformers", "vllm")
    settings = LayerFactors
    needs_rope = True
    is_listed = False

    def apply_to(self, model: PreTrainedModel, settings: LayerFactors) -> Undo:
        from posgap.models.layer_scaling import layer_scaling

        check_factors(settings.factors, model.config.get_text_config().num_hidden_layers, model.name_or_path or "lpes")
        scaling = layer_scaling(model)
        scaling.set(settings.factors)
        setattr(model.config, CONFIG_KEY, settings.factors)

        def undo() -> None:
            scaling.set([1.0] * scaling.n_layers)
            delattr(model.config, CONFIG_KEY)

        return undo

    def neutral_settings(self, config: PretrainedConfig) -> LayerFactors:
        return LayerFactors(factors=[1.0] * config.get_text_config().num_hidden_layers)

    def propose_settings(self, proposal: ProposalInput) -> Sequence[LayerFactors]:
        """Returns the best candidates of a search."""
        return [LayerFactors(factors=list(factors)) for factors in proposal.search_factors()]

    def write_config(self, config_json: Mapping[str, Any], settings: LayerFactors) -> dict[str, Any]:
        """Writes equal factors so that any loader of the folder can read them: as none, or as one linear factor of the
        model's RoPE, if it has a single one that is not scaled yet."""
        without = {key: value for key, value in config_json.items() if key != CONFIG_KEY}
        factor, *others = set(settings.factors)
        if not others and factor == 1:
            return without
        native = None if others else linear_for_all_layers(without, factor)
        return native or {**config_json, CONFIG_KEY: settings.factors}


LPES = LayerSpecificScaling()
