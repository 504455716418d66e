"""Layer-specific scaling of rotary position embeddings, after LPES (arXiv 2606.27705): curves over depth and the search
for the best one. The model's parameters stay as they are; `posgap.models` applies the factors."""
