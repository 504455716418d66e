"""Multi-scale positional encoding (Ms-PoE): one RoPE factor per attention head, by the head's sensitivity to position.

In each layer heads are ranked by the share of the prompt's tokens that get more than three times the mean attention
from its last token. The most sensitive head reads positions divided by 1.2, the least sensitive by 1.8, the others by
factors between in equal steps; the first two layers stay unchanged (Zhang et al. 2024, sections 3.3 and 4.1).

The released code (VITA-Group/Ms-PoE) compared with this module:
- It ranks heads at each prompt, by queries and keys without positions, as this module does.
- Its steps are low + (high - low) * rank / H, which never reach `high`. It takes the order of the heads for their
  ranks, which gives head h another head's step than the paper's text. Here the most sensitive head gets `low` and the
  least sensitive `high`, as in the paper.
- It is for multi-head attention. Under grouped queries it rotates each key by the factor of the first query head that
  shares it, so scores depend on more than distances. Here the heads that share a key are ranked together and share a
  factor.
"""

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from posgap.foundation.heavy_types import PretrainedConfig, PreTrainedModel
from posgap.mitigations.mitigation import ModelMitigation, ProposalInput, Settings, Undo

_Factor = Annotated[float, Field(gt=0)]


class HeadRanking(Settings):
    """The most sensitive head of a layer, from `first_layer` on, reads positions divided by `low`, the least sensitive
    by `high`. Query heads that share a key are ranked together."""

    low: _Factor = 1.2
    high: _Factor = 1.8
    first_layer: Annotated[int, Field(ge=0)] = 2


class MsPoE(ModelMitigation):
    name = "ms-poe"
    help = "one RoPE factor per attention head, by its sensitivity to position, ranked anew at each prompt"
    level = "positions"
    source = "Ms-PoE, Zhang et al. 2024, section 3.3, arXiv 2403.04797"
    cost = "each prompt's queries and keys are computed twice"
    served_by = ("transformers",)
    settings = HeadRanking
    needs_own_batch = True

    def apply_to(self, model: PreTrainedModel, settings: HeadRanking) -> Undo:
        from posgap.models.head_scaling import rank_heads

        return rank_heads(model, settings.low, settings.high, settings.first_layer)

    def neutral_settings(self, config: PretrainedConfig) -> HeadRanking:
        return HeadRanking(low=1, high=1)

    def propose_settings(self, proposal: ProposalInput) -> Sequence[HeadRanking]:
        """Returns the paper's ranking; of models of two layers or fewer, of all layers."""
        n_layers = proposal.model.config.get_text_config().num_hidden_layers
        return [HeadRanking(first_layer=2 if n_layers > 2 else 0)]


MS_POE = MsPoE()
