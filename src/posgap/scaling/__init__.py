"""Layer-specific scaling of rotary position embeddings, after LPES (arXiv 2606.27705): the search for the best factors,
the file that keeps them, and the plugin that applies them in vLLM.

The model's parameters stay unchanged: `posgap.mitigations.curves` has the curves, `posgap.models` applies factors.
"""
