"""Pos2Distill (Wang et al., EMNLP 2025): distils a model's own answers at its best position into the others."""
