"""What held-out examples and plain text say of a model while it trains. Nothing is generated: the model reads the gold
answers, as in training."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from posgap.distillation.batches import Collator, Pair, teacher_prompts
from posgap.distillation.batching import divide_rows
from posgap.distillation.held_out import MEAN, NATS, TEXT, WORST
from posgap.distillation.processes import gather, rank_and_world
from posgap.foundation.errors import PosgapError
from posgap.tasks.content import content_key
from posgap.tasks.examples import AnyExample
from posgap.tasks.placements import Placement, spread_placements
from posgap.tasks.prompts import PromptBuilder
from posgap.tasks.responses import Response

MAX_PLACEMENTS = 5
MAX_TEXT_TOKENS = 256
TIMES = 10  # evaluations of a training, unless steps are given


@dataclass
class Evaluation:
    """Prompts that are read after some of the steps: `examples` has those of held-out examples with their gold answers,
    a pair for each placement, `texts` plain texts. `every` so many steps, and after the last one."""

    examples: Collator | None
    texts: Collator | None
    every: int

    def is_due(self, step: int, steps: int) -> bool:
        """Whether the model is measured after `step` of so many."""
        return step == steps or step % (self.every or max(1, steps // TIMES)) == 0

    def measure(
        self, student: Callable[..., Tensor], device: torch.device, micro_batch_tokens: int
    ) -> dict[str, float]:
        """Returns how many gold answers the model would give word for word, in percent, in the mean over placements and
        at the worst one, and nats a token of these answers and of plain text.

        Processes share the prompts, and all of them call this. It changes neither weights nor random numbers.
        """
        figures = {}
        if self.examples:
            read = _judge(self.examples, student, device, micro_batch_tokens)
            by_placement = defaultdict(list)
            for pair, (_, is_right) in zip(self.examples.pairs, read):
                by_placement[pair.response.at].append(is_right)
            accuracy = [100 * float(np.mean(rights)) for rights in by_placement.values()]
            figures |= {WORST: min(accuracy), MEAN: float(np.mean(accuracy)), NATS: float(read[:, 0].mean())}
        if self.texts:
            figures[TEXT] = float(_judge(self.texts, student, device, micro_batch_tokens)[:, 0].mean())
        return figures


def _judge(collate: Collator, student: Callable[..., Tensor], device: torch.device, most_tokens: int) -> np.ndarray:
    """The nats a token of each pair's response, and whether the model would give it word for word: `[N, 2]`."""
    rank, world = rank_and_world()
    rows = teacher_prompts(collate.pairs)
    lengths = [len(collate.input_tokens(row)) for row in rows]
    found: dict[int, list[float]] = {}
    for part in divide_rows(range(len(rows)), lengths, world, most_tokens):
        for call in part.calls(rank, world):
            batch = collate([rows[index] for index in call]).to(device)
            with torch.no_grad():
                found.update(zip(call, student(batch, judged=True).tolist()))
    everything: dict[int, list[float]] = {}
    for of_process in gather(found):
        everything |= of_process
    return np.array([everything[index] for index in range(len(rows))])


def held_out_pairs(
    examples: Sequence[AnyExample], builder: PromptBuilder, n_docs: Sequence[int], n_gold: int
) -> list[Pair]:
    """Pairs each example with its gold answer at up to five placements in prompts of each number of documents."""
    pairs = []
    for documents in n_docs:
        placements = spread_placements(documents, n_gold)
        chosen = np.linspace(0, len(placements) - 1, min(MAX_PLACEMENTS, len(placements))).round().astype(int)
        for index in chosen.tolist():
            pairs += [_gold_pair(example, placements[index], builder) for example in examples]
    return pairs


def _gold_pair(example: AnyExample, placement: Placement, builder: PromptBuilder) -> Pair:
    tokens = builder.gold_response(example, placement)
    return Pair(example, _response(tokens, placement, example.id, content_key(example)))


def _response(tokens: list[int], placement: Placement, name: str = "", content: str = "") -> Response:
    return Response(
        id=name,
        content=content,
        placement=list(placement.positions),
        n_docs=placement.n_docs,
        response="",
        token_ids=tokens,
        correct=True,
    )


class Continuations:
    """Makes of plain texts what a `Collator` takes: the first token is the prompt, and the next ones the response."""

    def __init__(self, tokenizer: Any):
        self.tokenizer = tokenizer

    def __call__(self, text: Any, placement: Placement) -> list[int]:
        return self.tokenizer(text)["input_ids"][:1]

    def collate(self, texts: Sequence[str]) -> Collator:
        """Returns a collator of the beginnings of these texts; `PosgapError` if one has a single token."""
        pairs = []
        for text in texts:
            tokens = self.tokenizer(text)["input_ids"][1:MAX_TEXT_TOKENS]
            if not tokens:
                raise PosgapError(f"the text {text[:40]!r} has no second token; give longer texts")
            pairs.append(Pair(text, _response(tokens, Placement((1,), 1))))  # type: ignore[arg-type]  # a text, no example
        return Collator(pairs, self)  # type: ignore[arg-type]  # which builds prompts of texts
