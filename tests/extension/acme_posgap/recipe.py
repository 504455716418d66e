"""A recipe: the paper's, with a learning rate for small models."""

from dataclasses import replace

from posgap.distillation.recipes import PAPER, Setting

FAST = replace(
    PAPER,
    name="fast",
    help="for models of a hundred million parameters",
    settings={**PAPER.settings, "learning_rate": Setting(1e-4, "our own trials")},
)
