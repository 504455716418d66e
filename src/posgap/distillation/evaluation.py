"""Measures held-out examples and plain text while a model trains. Nothing is generated: the model reads the gold
answers, as in training."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from posgap.distillation.batches import Collator, Pair, teacher_prompts
from posgap.distillation.batching import divide_rows
from posgap.distillation.held_out import MEAN, NATS, TEXT, WORST
from posgap.distillation.processes import gather, rank_and_world
from posgap.measurement.plain_text import log_probabilities
from posgap.tasks.content import content_key
from posgap.tasks.examples import AnyExample
from posgap.tasks.placements import spread_placements
from posgap.tasks.prompts import PromptBuilder
from posgap.tasks.responses import Response

MOST = 64  # examples, and texts, so that an evaluation takes little of a training's time
MAX_PLACEMENTS = 5
TIMES = 10  # evaluations of a training, unless steps are given


@dataclass(frozen=True)
class Evaluation:
    """What is measured every `every` steps and after the last one; 0: `TIMES` times in all.

    `examples` has a pair for each held-out example and placement, with the gold answer as its response; None: none.
    """

    examples: Collator | None
    texts: Sequence[str]
    tokenizer: PreTrainedTokenizerBase
    every: int

    @property
    def digests(self) -> list[str]:
        """The sha256 of each prompt with its gold answer; figures of other examples are not compared with theirs."""
        if self.examples is None:
            return []
        return [self.examples.digest(row) for row in teacher_prompts(self.examples.pairs)]

    def is_due(self, step: int, steps: int) -> bool:
        """Whether the model is measured after `step` of `steps`."""
        return step == steps or step % (self.every or max(1, steps // TIMES)) == 0

    def measure(
        self, student: Callable[..., Tensor], model: PreTrainedModel, device: torch.device, micro_batch_tokens: int
    ) -> dict[str, float]:
        """Returns the share of gold answers that the model would give word for word, in percent, as the mean over
        placements and at the worst one, and nats a token of these answers and of plain text.

        `student` wraps the `model` for all processes, which share the prompts; each reads all texts. Every process
        calls this. It changes neither weights nor random numbers.
        """
        figures: dict[str, float] = {}
        if self.examples:
            read = _judge(self.examples, student, device, micro_batch_tokens)
            by_placement = defaultdict(list)
            for pair, (_, is_right) in zip(self.examples.pairs, read):
                by_placement[pair.response.at].append(is_right)
            accuracy = [100 * float(np.mean(rights)) for rights in by_placement.values()]
            figures |= {WORST: min(accuracy), MEAN: float(np.mean(accuracy)), NATS: float(read[:, 0].mean())}
        if self.texts:
            figures[TEXT] = -float(np.mean(log_probabilities(model, self.tokenizer, self.texts)))
        return figures


def _judge(collate: Collator, student: Callable[..., Tensor], device: torch.device, most_tokens: int) -> np.ndarray:
    """The nats a token of each pair's response, and whether the model would give it word for word: `[N, 2]`."""
    rank, world = rank_and_world()
    rows = teacher_prompts(collate.pairs)
    lengths = [len(collate.input_tokens(row)) for row in rows]
    judged = np.zeros((len(rows), 2))
    for part in divide_rows(range(len(rows)), lengths, world, most_tokens):
        own = dict[int, list[float]]()
        for call in part.calls(rank, world):
            batch = collate([rows[index] for index in call]).to(device)
            with torch.no_grad():
                own.update(zip(call, student(batch, judged=True).tolist()))
        for of_process in gather(own):
            for index, row in of_process.items():
                judged[index] = row
    return judged


def held_out_pairs(
    examples: Sequence[AnyExample], builder: PromptBuilder, n_docs: Sequence[int], n_gold: int
) -> list[Pair]:
    """Pairs each example with its gold answer at up to five placements in prompts of each number of documents."""
    pairs = []
    for documents in n_docs:
        placements = spread_placements(documents, n_gold)
        chosen = np.linspace(0, len(placements) - 1, min(MAX_PLACEMENTS, len(placements))).round().astype(int)
        for placement in [placements[index] for index in chosen.tolist()]:
            for example in examples:
                response = Response(
                    id=example.id,
                    content=content_key(example),
                    placement=list(placement.positions),
                    n_docs=documents,
                    response="",
                    token_ids=builder.gold_response(example, placement),
                    correct=True,
                )
                pairs.append(Pair(example, response))
    return pairs
