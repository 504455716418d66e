"""Layer-specific scaling as a method that the pipeline can try."""

from posgap.distillation.methods import Method

LPES = Method(
    "lpes",
    "RoPE factors per layer, searched without training",
    made_by="scale_apply",
    needs_rope=True,
    most_gold=1,
)
