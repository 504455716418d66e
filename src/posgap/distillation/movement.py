"""Computes the learning rate for a model's size, and, before training, how far training can move the model at all.

AdamW moves a weight by about its learning rate in an update, and by less if gradients disagree. So the sum of the rates
bounds how far a weight moves, whatever is learnt.
"""

from math import log2, sqrt
from typing import NamedTuple

from posgap.foundation.heavy_types import PretrainedConfig

# The paper's run: 94 updates at 3e-6, which falls linearly, on models of 7B, whose layers are 4,096 wide.
_PAPER_REACH = 3e-6 * 95 / 2
_PAPER_WIDTH = 4096
_PAPER_RATE, _PAPER_PARAMETERS = 3e-6, 7e9
# 8e-4 to 3e-3 closed the demo's gap (85,000 parameters), which are exponents of 0.49 to 0.61. At 135M 5e-5 was seen to
# move SmolLM2, an exponent of 0.71; the 3e-5 of this one was not tried there.
_EXPONENT = 0.6
_ADAPTERS = 10  # adapters begin at nothing, and want a higher rate than the weights that they are added to
_MANY_UPDATES = 50  # a shorter run costs little, and may be a trial
TYPICAL_WEIGHT = 0.02  # the root mean square of a matrix's weights, if a model's config names none


def default_learning_rate(parameters: int, adapters: bool = False) -> float:
    """Returns the peak rate for a model with this number of parameters: the paper's 3e-6 at 7B, and higher for smaller
    ones."""
    rate = _PAPER_RATE * (_PAPER_PARAMETERS / parameters) ** _EXPONENT * (_ADAPTERS if adapters else 1)
    return float(f"{rate:.0e}")


class Movement(NamedTuple):
    """How far a weight can move (`reach`), compared with a typical weight in a model of this width."""

    updates: int
    reach: float
    weight: float
    width: int

    @classmethod
    def estimate(cls, config: PretrainedConfig, updates: int, reach: float) -> "Movement":
        """Estimates the movement for this config, assuming weights of their initial size."""
        text = config.get_text_config()
        weight = getattr(text, "initializer_range", None) or TYPICAL_WEIGHT
        return cls(updates, reach, weight, text.hidden_size)

    @property
    def of_a_weight(self) -> float:
        """The reach as a share of a typical weight."""
        return self.reach / self.weight

    @property
    def bfloat16_steps(self) -> float:
        """The reach in steps of bfloat16 at a typical weight: below a half, a stored weight is the base's again."""
        return self.reach / 2.0 ** (int(log2(self.weight) // 1) - 7)

    @property
    def of_the_paper(self) -> float:
        """How far a layer's output can change, relative to the paper's run. If all weights move together, an output
        moves by the reach times the square root of the width, beside its size."""
        papers = _PAPER_REACH * sqrt(_PAPER_WIDTH) / TYPICAL_WEIGHT
        return self.of_a_weight * sqrt(self.width) / papers

    def __str__(self) -> str:
        return (
            f"{self.updates} updates move a weight by at most {_rounded(self.reach)}, "
            f"{_rounded(100 * self.of_a_weight)} % of a typical one, or {_rounded(self.bfloat16_steps)} steps of "
            f"bfloat16; a layer's output by at most {_rounded(self.of_the_paper)} times what the paper's run can"
        )

    def warning(self) -> str:
        """Returns a line if that is too little to expect anything; else empty."""
        if self.bfloat16_steps < 0.5:
            return (
                "these updates are too small for weights in bfloat16: give more examples or epochs, or a higher "
                "--learning-rate"
            )
        if self.of_the_paper < 1:
            return (
                "these updates are too few or too small to change answers: give more examples or epochs, or a higher "
                "--learning-rate"
            )
        return ""

    def is_wasted(self) -> bool:
        """Returns whether the run is long, yet can move the model by less than half as much as the paper's run."""
        return self.updates >= _MANY_UPDATES and self.of_the_paper < 0.5


def _rounded(number: float) -> str:
    """Returns two digits that count, like "0.14" or "280"."""
    return f"{float(f'{number:.2g}'):,g}"
