"""Layer-specific scaling of rotary position embeddings (LPES, arXiv 2606.27705): curves over depth,
their search, and their application to a model. No parameter changes."""

# Where a model's config.json has its factors.
CONFIG_KEY = "posgap_rope_factors"
