"""The comparison of mitigations: what suits a model, tried on some examples and measured on others."""
