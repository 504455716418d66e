"""The recipes of training: every value that the paper and the authors' code give, each with where it was read.

Pos2Distill is Wang et al., EMNLP 2025 (arXiv 2508.15709); its code is github.com/AMAP-ML/Pos2Distill at commit
ffa9715. What a recipe takes from neither is what PyTorch's AdamW and the Hugging Face Trainer do by default.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from posgap.foundation.choices import Choices, Parameters


class Setting(NamedTuple):
    """The value of one parameter of `distill`, and its source."""

    value: float | str
    source: str


@dataclass(frozen=True)
class Recipe:
    """The values of all parameters of `distill` that a recipe decides; what a user gives replaces a recipe's value."""

    name: str
    help: str
    settings: Mapping[str, Setting]
    parameters: ClassVar[type[Parameters]] = Parameters  # none

    def values(self) -> dict[str, float | str]:
        """The values by parameter, without their sources."""
        return {name: setting.value for name, setting in self.settings.items()}


_ADAMW = "not given; default of torch.optim.AdamW"
_TRAINER = "not given; default of the Hugging Face Trainer"
_TRAIN = "kd/train_kd.py"
_SCRIPT = "scripts/train_nq.sh"

PAPER = Recipe(
    "pos2distill",
    "the paper's text",
    {
        "k": Setting(4, "experimental setup: K = 4 random positions"),
        "epochs": Setting(2, "experimental setup: 2 epochs"),
        "batch_size": Setting(32, "experimental setup: batch size 32, of prompts as in the authors' code"),
        "mix": Setting("examples", "section 3.1: alpha compares the positions of the same examples"),
        "distractors": Setting("kept", "section 3.1: the prompts of an example differ in the gold document's position"),
        "learning_rate": Setting(3e-6, "experimental setup: learning rate 3e-6"),
        "schedule": Setting("linear", _TRAINER),
        "warmup_steps": Setting(0, _TRAINER),
        "final_rate": Setting(0.0, _TRAINER),
        "adam_beta1": Setting(0.9, _ADAMW),
        "adam_beta2": Setting(0.999, _ADAMW),
        "adam_epsilon": Setting(1e-8, _ADAMW),
        "weight_decay": Setting(0.0, _TRAINER),
        "max_grad_norm": Setting(1.0, _TRAINER),
        "alignment": Setting("paper", "section 3.1, the weights alpha"),
        "anchoring": Setting(1.0, "section 3.1: lambda = 1"),
    },
)
AUTHORS = Recipe(
    "pos2distill-authors",
    "what the authors' code does, but for its labels, which are one token late",
    {
        "k": Setting(4, f"{_SCRIPT}: K"),
        "epochs": Setting(1, f"{_SCRIPT}: max_epochs"),
        "batch_size": Setting(32, f"{_SCRIPT}: train_batch_size, which counts prompts"),
        "mix": Setting("prompts", f"{_TRAIN}: the prompts of all examples are shuffled"),
        "distractors": Setting("reshuffled", "create_datasets.py, process_example"),
        "learning_rate": Setting(3e-6, f"{_SCRIPT}: learning_rate"),
        "schedule": Setting("cosine", f"{_TRAIN}: cosine_with_min_lr"),
        "warmup_steps": Setting(0.05, f"{_TRAIN}: lr_warmup_ratio"),
        "final_rate": Setting(0.1, f"{_TRAIN}: min_lr"),
        "adam_beta1": Setting(0.9, f"{_TRAIN}: adam_betas"),
        "adam_beta2": Setting(0.95, f"{_TRAIN}: adam_betas"),
        "adam_epsilon": Setting(1e-8, _ADAMW),
        "weight_decay": Setting(0.01, f"{_SCRIPT}: l2"),
        "max_grad_norm": Setting(1.0, f"{_TRAIN}: max_norm"),
        "alignment": Setting("authors", "kd/loss_design.py, AdaptiveKLWeightedKLLoss"),
        "anchoring": Setting(1.0, f"{_SCRIPT}: perserve"),
    },
)

RECIPES: Choices[Recipe] = Choices(
    "recipe",
    "posgap.recipes",
    PAPER,
    AUTHORS,
)
