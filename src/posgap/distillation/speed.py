"""How fast steps of training were: tokens a second, and the share of the rate that a known GPU can reach."""

from dataclasses import dataclass, field

import torch

# 1e12 operations a second in bfloat16 without sparsity, by the makers' data sheets; the first name that fits counts.
PEAK_TFLOPS = {"B200": 2250.0, "H200": 989.0, "H100 PCIe": 756.0, "H100": 989.0, "A100": 312.0, "L40S": 362.0}
WARM_UP = 2  # steps in which memory is laid out and kernels are compiled


@dataclass
class Speed:
    """Tokens of prompts and responses in each step, and the seconds that it took, on `processes` GPUs or CPUs.

    The share counts what reading every prompt by itself takes: 6 operations a token and trained parameter, 4 a frozen
    one. This is MFU: a prefix that is computed once for several prompts counts for each.
    """

    trained: int
    frozen: int
    processes: int = 1
    steps: list[tuple[int, float]] = field(default_factory=list)

    @classmethod
    def for_model(cls, model: torch.nn.Module, processes: int) -> "Speed":
        """Counts a model's parameters; of those in ZeRO-3's pieces the whole."""
        sizes = {True: 0, False: 0}
        for parameter in model.parameters():
            sizes[parameter.requires_grad] += getattr(parameter, "ds_numel", parameter.numel())
        return cls(sizes[True], sizes[False], processes)

    def tokens_per_second(self) -> float:
        """Returns the rate over all processes, without the first steps if there are others; 0 before any step."""
        counted = self.steps[WARM_UP:] or self.steps
        seconds = sum(seconds for _, seconds in counted)
        return sum(tokens for tokens, _ in counted) / seconds if seconds else 0.0

    def share_of_peak(self, card: str) -> float | None:
        """Returns the share of a card's peak rate that was reached; None if the card is unknown."""
        peak = next((rate for name, rate in PEAK_TFLOPS.items() if name in card), 0.0)
        operations = (6 * self.trained + 4 * self.frozen) * self.tokens_per_second()
        return operations / (peak * 1e12 * self.processes) if peak else None

    def describe(self, card: str, arithmetic: str) -> str:
        """Returns a line: tokens a second, and, for bfloat16 on a known card, the share of its peak rate."""
        line = f"{self.tokens_per_second():,.0f} tokens/s"
        share = self.share_of_peak(card) if "bfloat16" in arithmetic else None
        return line if share is None else f"{line}, {100 * share:.0f} % of the rate of {card} (MFU)"
