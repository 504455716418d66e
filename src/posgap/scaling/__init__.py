"""Layer-specific scaling of rotary position embeddings (LPES, arXiv 2606.27705): curves over depth
and their search. No parameter changes; `posgap.models` applies the factors."""
