"""Pos2Distill (Wang et al., EMNLP 2025): the model's own answers at its best position,
distilled into the others."""
