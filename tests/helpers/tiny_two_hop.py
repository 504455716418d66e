"""A two-layer Llama that reasons in two hops, but loses documents far from the prompt's end.

Like `posgap.demo.tiny_model` it is an ordinary Hugging Face folder whose tokenizer reads the ordinary
`multihop-cot` prompt over the two-hop documents of `posgap.data.synthetic`. It answers "Ada: Ben. Ben: Cid. The answer
is Cid.", with one fact per sentence.

The model first learns to chain facts in short prompts with the gold documents anywhere. Then it sees long prompts
whose gold documents are nearly always the last two.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import torch
from tokenizers import Regex, decoders, normalizers
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from posgap.data.synthetic import CONTACT_QUESTION, PEOPLE
from posgap.demo.tiny_training import BATCH, IGNORED, SPECIAL, TinyModel, Updates, untrained_model, word_tokenizer
from posgap.foundation.progress import track
from posgap.models.loading import save_model
from posgap.tasks.multihop import MARKER
from posgap.tasks.registry import TASKS

TASK = "multihop-cot"
N_DOCS = 20

# The pieces of the prompt and of a response. Document numbers, the brackets around titles and the colon between two
# people are left out, so that a fact is the same two tokens in a prompt and in a response.
_HEAD, _TAIL = TASKS[TASK].template.split("{documents}")
_INSTRUCTION = re.findall(r"[^;:]+[;:]?", _HEAD)
_NEXT = "\n"
_ASK, _REASON = _TAIL.replace("{question}", CONTACT_QUESTION).split(" {}")
_STATE, _STOP = f" {MARKER}", "."
_PEOPLE = [f" {name}" for name in PEOPLE]
_VOCABULARY = [*SPECIAL, *_INSTRUCTION, _ASK, _REASON, _STATE, _STOP, _NEXT, *_PEOPLE]
_ID = {piece: i for i, piece in enumerate(_VOCABULARY)}
_PERSON = _ID[_PEOPLE[0]]
_NAME = "[A-Z][a-z]{2}"

# Numbers of training steps: for learning to chain facts, with growing n, with biased pairs (at least), and with a
# decaying learning rate.
_CHAINING, _RAMP, _BIAS, _DECAY = 400, 60, 80, 60
_USUAL_STEPS = _CHAINING + _BIAS + _DECAY


def tokenizer() -> PreTrainedTokenizerFast:
    """The word-level tokenizer of the two-hop prompt: 37 tokens, three to a document."""
    return word_tokenizer(
        _ID,
        [
            normalizers.Replace(Regex(r"Document \[\d+\]\(Title:"), ""),
            normalizers.Replace(Regex(rf"(?<={_NAME})[):] "), " "),
        ],
        "|".join(re.escape(piece) for piece in _VOCABULARY[len(SPECIAL) :]),
        [decoders.Replace(Regex(rf"(?<={_NAME}) (?={_NAME})"), ": ")],
    )


def untrained(seed: int) -> TinyModel:
    """The model before training: 2 layers, width 64, 4 heads, 37 tokens."""
    return untrained_model(len(_VOCABULARY), seed)


def pair_bias(n: int) -> Tensor:
    """The probability of each pair of positions (pre, post), [n, n]: greatest for the last two, and falling by a factor
    e with each position that one of them is further away from there."""
    i = torch.arange(n, dtype=torch.float64)
    distance = (i[:, None] - (n - 2)).abs() + (i[None] - (n - 1)).abs()
    weights = (torch.exp(-distance) + 1e-5).fill_diagonal_(0)
    return weights / weights.sum()


def draw_batch(rng: torch.Generator, batch: int, n: int, pairs: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Random prompts of n facts followed by questions with their chains of reasoning: `input_ids, labels [B, T]`.

    Every person of the cycle is asked about once, in random order. With `pairs [n, n]` there is a single question,
    whose gold documents stand at a pair of positions drawn with these weights. Only the responses are labelled.
    """
    cycle = _PERSON + torch.rand(batch, len(PEOPLE), generator=rng).topk(n, dim=1).indices
    # facts[b, i] is the fact that document i holds; fact f says who the contact of person f of the cycle is.
    facts = torch.rand(batch, n, generator=rng).argsort(1)
    if pairs is None:
        first = torch.rand(batch, n, generator=rng).argsort(1)
    else:
        drawn = torch.multinomial(pairs.flatten(), batch, replacement=True, generator=rng)
        gold = torch.stack([drawn // n, drawn % n], 1)
        first = facts.gather(1, gold[:, :1])
        facts = _with_second_hop(facts, first, gold[:, 1:])

    def person(fact: Tensor, hops: int) -> Tensor:
        return cycle.gather(1, (fact + hops) % n)

    def column(piece: str, like: Tensor) -> Tensor:
        return torch.full_like(like, _ID[piece])

    documents = torch.stack([person(facts, 0), person(facts, 1), column(_NEXT, facts)], 2).flatten(1)[:, :-1]
    a, b, c = (person(first, hops) for hops in range(3))
    ask, reason, stop = column(_ASK, a), column(_REASON, a), column(_STOP, a)
    question = torch.stack([ask, a, reason], 2)
    response = torch.stack([a, b, stop, b, c, stop, column(_STATE, a), c, stop, column("<eos>", a)], 2)
    head = torch.tensor([_ID["<bos>"], *(_ID[piece] for piece in _INSTRUCTION)]).expand(batch, -1)
    prompt = torch.cat([head, documents], 1)
    return (
        torch.cat([prompt, torch.cat([question, response], 2).flatten(1)], 1),
        torch.cat(
            [
                torch.full_like(prompt, IGNORED),
                torch.cat([torch.full_like(question, IGNORED), response], 2).flatten(1),
            ],
            1,
        ),
    )


def _with_second_hop(facts: Tensor, first: Tensor, position: Tensor) -> Tensor:
    """`facts [B, n]` with the fact that follows `first [B, 1]` in the chain swapped to index `position [B, 1]`."""
    second = (first + 1) % facts.shape[1]
    place = (facts == second).int().argmax(1, keepdim=True)
    return facts.scatter(1, place, facts.gather(1, position)).scatter(1, position, second)


@torch.no_grad()
def anywhere_accuracy(model: TinyModel, rng: torch.Generator, n_prompts: int = 256) -> float:
    """The share of entirely right responses, in [0, 1], with the gold documents at random positions among 20."""
    even = torch.ones(N_DOCS, N_DOCS).fill_diagonal_(0)
    ids, labels = draw_batch(rng, n_prompts, N_DOCS, even)
    # Greedy decoding gives exactly the right tokens if each of them is the likeliest after those before it.
    right = model(input_ids=ids[:, :-1]).logits.argmax(-1) == labels[:, 1:]
    return float((right | (labels[:, 1:] == IGNORED)).all(1).float().mean())


def train(seed: int) -> TinyModel:
    """Trains the tiny two-hop model on random facts. About half a minute on two cores."""
    model = untrained(seed)
    for _ in track(_updates(model, torch.Generator().manual_seed(seed)), _USUAL_STEPS, "tiny two-hop model"):
        pass
    return model.eval()


def _updates(model: TinyModel, rng: torch.Generator) -> Iterator[None]:
    """Trains `model` in place, first to reason and then to lose distant documents; yields after every step."""
    update = Updates(model)
    for step in range(_CHAINING):
        n = int(torch.randint(3, 7, (), generator=rng))
        update(*draw_batch(rng, BATCH, n), min(1.0, (step + 1) / 30))
        yield
    step, lost_at = 0, None
    while lost_at is None or step < lost_at + _DECAY:
        may_end = lost_at is None and step >= _BIAS and step % 20 == 0
        if may_end and (step >= 400 or anywhere_accuracy(model, rng) < 0.4):
            lost_at = step
        n = 6 + round((N_DOCS - 6) * step / _RAMP) if step < _RAMP else N_DOCS
        decay = 0 if lost_at is None else (step - lost_at) / _DECAY
        update(*draw_batch(rng, BATCH, n, pair_bias(n)), 1 - 0.95 * decay)
        step += 1
        yield


def write(out: Path, seed: int) -> None:
    """Trains the tiny two-hop model and saves it with its tokenizer as a Hugging Face folder."""
    save_model(train(seed), tokenizer(), out)
