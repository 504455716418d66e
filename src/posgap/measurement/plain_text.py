"""Measures a model on plain text: the mean log-probability of its tokens, which training for something else can
cost."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from posgap.foundation.errors import PosgapError
from posgap.foundation.files import Record, digest_of, read_jsonl
from posgap.mitigations.in_force import load_model
from posgap.models.precision import device_class

TOKENS = 256  # of a text, from its beginning


class TextScores(Record):
    """A model's scores on plain texts."""

    label: str = Field(description="name of the model in reports")
    model: str = Field(description="folder or name of the model")
    model_digest: str = Field(description="sha256 of the model folder; empty for a model on the hub")
    dtype: str = Field(description="precision of the computation")
    device: str = Field(description="kind of device: cpu or cuda")
    tokens: int = Field(TOKENS, description="largest number of tokens read of a text")
    scores: dict[str, float] = Field(description="mean log-probability of a token in nats, for each text by its sha256")

    @property
    def mean(self) -> float:
        """The mean over texts, in nats."""
        return sum(self.scores.values()) / len(self.scores)


def read_texts(path: Path) -> list[str]:
    """Reads plain texts from a file of JSON lines with a field `text`. Raises `PosgapError` that names the line."""
    texts = []
    for number, row in read_jsonl(path):
        text = row.get("text")
        if not isinstance(text, str) or not text.strip():
            raise PosgapError(f'{path}:{number}: no plain text; write lines like {{"text": "..."}}')
        texts.append(text)
    if len(set(texts)) < len(texts) or not texts:
        raise PosgapError(f"{path}: {len(texts)} texts, but only {len(set(texts))} different ones; give each text once")
    return texts


def score_model(model: str, dtype: str, texts: Sequence[str]) -> dict[str, float]:
    """Returns the mean log-probability, in nats, of a token in the beginning of each text, by the text's sha256, as
    transformers computes it with the model of a folder."""
    from posgap.models.loading import load_tokenizer  # late: it needs torch

    network = load_model(model, dtype)
    network.to(device_class())  # type: ignore[arg-type]  # mypy misreads transformers' `to`
    means = log_probabilities(network, load_tokenizer(model), texts)
    return dict(zip(map(digest_of, texts), means, strict=True))


def log_probabilities(network: Any, tokenizer: Any, texts: Sequence[str], tokens: int = TOKENS) -> list[float]:
    """Returns the mean log-probability, in nats, of a token in the first `tokens` of each of the texts [E]."""
    import torch  # late: a reader of figures does not need it

    means = []
    for text in texts:
        ids = torch.tensor([tokenizer(text)["input_ids"][:tokens]], device=network.device)
        if ids.shape[1] < 2:
            raise PosgapError(f"the text {text[:40]!r} has no second token; give longer texts")
        with torch.no_grad():
            logits = network(input_ids=ids).logits[0, :-1].float()
        means.append(float(logits.log_softmax(-1).gather(-1, ids[0, 1:, None]).mean()))
    return means
