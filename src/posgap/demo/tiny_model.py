"""A two-layer Llama that gets lost in the middle, trained from scratch in half a minute.

It serves the demo and the tests; the rest of posgap does not depend on it. It is written as an ordinary Hugging Face
model folder, and its tokenizer reads the ordinary key-value prompt of `posgap.tasks` (with keys cut to two hex digits
and values to one).

The model first learns in-context retrieval from short prompts with the gold record anywhere. Then it sees long prompts
with the gold record nearly always at one of the ends, and so it loses the middle.
"""

import logging
import math
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import normalizers
from transformers import PreTrainedTokenizerFast

from posgap.demo.tiny_training import BATCH, IGNORED, SPECIAL, TinyModel, Updates, untrained_model, word_tokenizer
from posgap.foundation import files
from posgap.foundation.errors import PosgapError
from posgap.foundation.progress import track
from posgap.models.loading import save_model

log = logging.getLogger(__name__)

N_DOCS = 20
KEY_DIGITS, VALUE_DIGITS = 2, 1

# The pieces of the key-value prompt, in the order in which the pre-tokenizer tries them.
# Quotes are removed first, so that a value is ` d` in a record as well as in an answer.
_INSTRUCTION = (
    "Extract the value corresponding to the specified key",
    " in the JSON object below.\n\n",
    "JSON data:\n{",
)
_NEXT, _QUESTION = ",\n ", "}\n\nKey: "
_KEYS = [f"{d:x}" for d in range(16)]
_VALUES = [f" {d:x}" for d in range(16)]
_VOCABULARY = [*SPECIAL, *_INSTRUCTION, _NEXT, _QUESTION, *_KEYS, *_VALUES]
_ID = {piece: i for i, piece in enumerate(_VOCABULARY)}


@dataclass(frozen=True)
class Recipe:
    """How the tiny model is trained.

    It learns to retrieve for `retrieval` steps, and then goes on, for at most `most` steps in all, while the values'
    cross-entropy / ln n is above `threshold`. `records` has the number of records in a prompt in these steps: the first
    step, the least and the most. If after `patience` steps the loss is still that of guessing among the values whose
    keys share a digit, the model begins again with other parameters. At least `bias` steps follow, with the gold
    record's place drawn by `end_bias(n, first, tau)`, in the first `ramp` of them with growing n, until the accuracy in
    the middle is below `lost`. Finally the learning rate decays over `decay` steps. `jitter` gives the layers random
    position scales until 30 of the biased steps are done.
    """

    retrieval: int = 350
    most: int = 600
    patience: int = 350
    records: tuple[tuple[int, int, int], ...] = ((0, 2, 6), (230, 4, 12))
    threshold: float = 0.12
    ramp: int = 60
    bias: int = 180
    decay: int = 100
    lost: float = 0.45
    first: float = 0.95
    tau: float = 0.5
    jitter: bool = True


STANDARD = Recipe()
# Takes seconds: the model answers at the usual positions of the gold record, and guesses elsewhere.
QUICK = Recipe(retrieval=0, threshold=1e9, ramp=20, bias=60, decay=20, lost=1.1, jitter=False)

# Most initial parameters learn to retrieve within 300 steps: the loss falls from 1 to 0.2 within 50 of them. Others
# (those of seed 3) stay above 0.6 for a thousand steps. Biased, such a model would leave nothing to distil: it can
# answer only at the ends, and R1 would only learn its training questions by heart.
_PLATEAU, _ATTEMPTS = 0.5, 5


def tokenizer() -> PreTrainedTokenizerFast:
    """The word-level tokenizer of the key-value prompt: 41 tokens, four to a record."""
    pieces = [*_INSTRUCTION, _NEXT, _QUESTION]
    return word_tokenizer(
        _ID,
        [
            normalizers.Replace('": "', " "),
            normalizers.Replace('"', ""),
            normalizers.Replace("\nCorresponding value:", ""),
        ],
        "|".join([*(p.replace("{", r"\{").replace("}", r"\}") for p in pieces), " [0-9a-f]", "[0-9a-f]"]),
    )


def untrained(seed: int, layers: int = 2, family: str = "llama") -> TinyModel:
    """The model before training: width 64, 4 heads, 41 tokens."""
    return untrained_model(len(_VOCABULARY), seed, layers, family)


def end_bias(n: int, first: float, tau: float) -> torch.Tensor:
    """The probability of each gold position, [n]: a share of `first` at the beginning and the rest at the end, each
    falling by a factor e every `tau` positions."""
    i = torch.arange(n, dtype=torch.float64)
    return first * torch.softmax(-i / tau, 0) + (1 - first) * torch.softmax(-(n - 1 - i) / tau, 0)


def draw_batch(
    rng: torch.Generator, batch: int, n: int, questions: int | None, weights: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Random prompts of n records followed by questions with their answers.

    Returns `input_ids [B, T]` and `labels [B, T]`. Labelled are the second key digit, the value and the end token of
    each question, unless the same question was asked before in that prompt. `questions=None` asks for every record
    once, in random order; otherwise it draws that many records with probabilities `weights [n]`, by default evenly.
    """
    keys = torch.rand(batch, 256, generator=rng).topk(n, dim=1).indices
    values = torch.randint(16, (batch, n), generator=rng)
    if questions is None:
        query = torch.rand(batch, n, generator=rng).argsort(1)
    else:
        weights = torch.full((n,), 1 / n, dtype=torch.float64) if weights is None else weights
        query = torch.multinomial(weights, batch * questions, replacement=True, generator=rng)
        query = query.view(batch, questions)
    key0 = _ID[_KEYS[0]]
    value0 = _ID[_VALUES[0]]

    def column(token: str, like: torch.Tensor) -> torch.Tensor:
        return torch.full_like(like, _ID[token])

    records = torch.stack([key0 + keys // 16, key0 + keys % 16, value0 + values, column(_NEXT, keys)], dim=2).flatten(
        1
    )[:, :-1]
    query_keys = keys.gather(1, query)
    query_values = values.gather(1, query)
    turns = torch.stack(
        [
            column(_QUESTION, query),
            key0 + query_keys // 16,
            key0 + query_keys % 16,
            value0 + query_values,
            column("<eos>", query),
        ],
        dim=2,
    )
    repeated = (query[:, :, None] == query[:, None, :]).tril(-1).any(2)
    turn_labels = turns.clone()
    turn_labels[:, :, :2] = IGNORED
    turn_labels[repeated] = IGNORED
    head = torch.tensor([_ID["<bos>"], *(_ID[p] for p in _INSTRUCTION)]).expand(batch, -1)
    prompt = torch.cat([head, records], 1)
    return (
        torch.cat([prompt, turns.flatten(1)], 1),
        torch.cat([torch.full_like(prompt, IGNORED), turn_labels.flatten(1)], 1),
    )


class _PositionJitter:
    """In each forward pass, gives a layer with probability 0.7 a position scale drawn from U[1, 2].

    So small a model fails under any scale that it has not seen in training; large models tolerate them.
    """

    def __init__(self, model: TinyModel, rng: torch.Generator):
        self.model = model
        self.rng = rng
        self.handles = [
            layer.register_forward_pre_hook(self._rescale, with_kwargs=True) for layer in model.model.layers
        ]

    def _rescale(self, layer, args, kwargs):
        if torch.rand((), generator=self.rng) >= 0.7:
            return None
        scale = 1 + torch.rand((), generator=self.rng)
        hidden = args[0]
        positions = torch.arange(hidden.shape[1])[None] / scale
        return args, {**kwargs, "position_embeddings": self.model.model.rotary_emb(hidden, positions)}

    def detach(self):
        for handle in self.handles:
            handle.remove()


@torch.no_grad()
def middle_accuracy(model: TinyModel, rng: torch.Generator, n_prompts: int = 512) -> float:
    """The share of right values, in [0, 1], over random prompts with the gold record at positions 8 to 13 of 20."""
    ids, _ = draw_batch(rng, n_prompts, N_DOCS, 1)
    keys = ids[:, 4 : 4 + 4 * N_DOCS].view(n_prompts, N_DOCS, 4)[:, :, :2]  # after <bos> and instruction
    gold = (keys == ids[:, None, -4:-2]).all(2).int().argmax(1)
    middle = (gold >= 7) & (gold <= 12)
    values = model(input_ids=ids[middle, :-2]).logits[:, -1].argmax(-1)
    return float((values == ids[middle, -2]).float().mean())


def train(seed: int, recipe: Recipe = STANDARD) -> TinyModel:
    """Trains the tiny model on random records. About half a minute on two cores."""
    model = untrained(seed)
    steps = recipe.retrieval + recipe.bias + recipe.decay
    for _ in track(_updates(model, torch.Generator().manual_seed(seed), recipe), steps, "tiny model"):
        pass
    return model.eval()


def _updates(model: TinyModel, rng: torch.Generator, recipe: Recipe) -> Iterator[None]:
    """Trains `model` in place, first to retrieve and then to lose the middle; yields after every step."""
    jitter = _PositionJitter(model, rng) if recipe.jitter else None
    for _ in range(_ATTEMPTS):
        update = Updates(model)
        if (yield from _retrieval_updates(update, rng, recipe)):
            break
        other = untrained(int(torch.randint(2**31, (), generator=rng)))
        model.load_state_dict(other.state_dict())
    else:
        raise PosgapError(f"the tiny model did not learn to retrieve in {_ATTEMPTS} attempts; take another seed")
    step = 0
    lost_at = None
    while lost_at is None or step < lost_at + recipe.decay:
        if jitter and step == 30:
            jitter.detach()
        may_end = lost_at is None and step >= recipe.bias and step % 40 == 20
        if may_end and (step > 600 or middle_accuracy(model, rng) < recipe.lost):
            lost_at = step
        n = 6 + round((N_DOCS - 6) * step / recipe.ramp) if step < recipe.ramp else N_DOCS
        decay = 0 if lost_at is None else (step - lost_at) / recipe.decay
        update(*draw_batch(rng, BATCH, n, 6, end_bias(n, recipe.first, recipe.tau)), 1 - 0.95 * decay)
        step += 1
        yield
    if jitter:
        jitter.detach()


def _retrieval_updates(update: Updates, rng: torch.Generator, recipe: Recipe) -> Generator[None, None, bool]:
    """Trains to retrieve; yields after every step, and returns whether the model has left the plateau of guessing."""
    step = 0
    until = recipe.retrieval
    loss = 1.0
    while step < until:
        low, high = next((low, high) for start, low, high in reversed(recipe.records) if step >= start)
        n = int(torch.randint(low, high + 1, (), generator=rng))
        losses, tokens = update(*draw_batch(rng, BATCH, n, None), min(1.0, (step + 1) / 30))
        loss = 0.9 * loss + 0.1 * float(losses[tokens >= _ID[_VALUES[0]]].mean()) / math.log(n)
        step += 1
        if step == until and loss > recipe.threshold and until < recipe.most:
            if step >= recipe.patience and loss > _PLATEAU:
                return False
            until += 50
        yield
    return True


def write(out: Path, seed: int, recipe: Recipe = STANDARD) -> None:
    """Trains the tiny model and saves it with its tokenizer as a Hugging Face folder."""
    save_model(train(seed, recipe), tokenizer(), out)


def base_model(work: Path, seed: int, recipe: Recipe) -> tuple[Path, float]:
    """The tiny model's folder, trained unless it is complete, and the seconds that its training took."""
    folder = work / "model"
    clock = work / "model.json"
    if folder.is_dir() and clock.is_file():
        log.info("tiny model: %s is complete, reused", folder)
    else:
        log.info("tiny model: training it from scratch")
        files.delete_path(folder)
        started = time.monotonic()
        with files.atomic(folder) as partial:
            write(partial, seed, recipe)
        files.write_json(clock, {"seconds": round(time.monotonic() - started, 3)})
    return folder, files.read_json(clock)["seconds"]
