"""Attention statistics and input-token influence of a decoder, batch by batch."""

import inspect
from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from posgap.models.loading import eager_attention
from posgap.rollout.decoders import Decoder
from posgap.rollout.distributions import normalized

INFLUENCES = ("gradient", "gradient_times_input", "rollout", "rollout_without_residuals")


class Statistics:
    """Collects attention statistics by layer and head, as sums over texts.

    Means over queries leave out the first query, which sees only itself.
    """

    def __init__(self, n_layers: int, n_heads: int, n: int, slopes: Tensor, threshold: float):
        self.n, self.slopes, self.threshold, self.texts = n, slopes, threshold, 0
        shapes = {"first_mass": (), "diagonal_mass": (), "entropy": (), "content": (), "distance": (n,), "sink": (n,)}
        self.sums = {name: np.zeros((n_layers, n_heads, *shape)) for name, shape in shapes.items()}
        self.lambdas = np.zeros(n_layers)
        steps = torch.arange(n, device=slopes.device)
        self.distance = (steps[:, None] - steps[None, :]).clamp(min=0)

    def add_strengths(self, strengths: Tensor) -> None:
        """Adds the residual strengths [L, B, N] of a batch; called before the batch's `add`."""
        self.texts += strengths.shape[1]
        self.lambdas += strengths.double().mean(dim=2).sum(dim=1).cpu().numpy()

    def add(self, layer: int, a: Tensor) -> None:
        """Adds the attention matrices `a [B, H, N, N]` of one layer."""
        n, later = self.n, a[:, :, 1:]
        logs = torch.where(later > 0, later, 1.0).log()
        per_text = {
            "first_mass": later[..., 0].mean(dim=2),
            "diagonal_mass": later.diagonal(1, 2, 3).mean(dim=2),
            "entropy": -(later * logs).sum(dim=3).mean(dim=2),
            "content": self._content(later, logs),
            # Key j can be seen by N - j queries (below: distance d occurs at N - d of them).
            "sink": (a > self.threshold).sum(dim=2) / torch.arange(n, 0, -1, device=a.device),
        }
        for name, values in per_text.items():
            self.sums[name][layer] += values.double().sum(dim=0).cpu().numpy()
        by_distance = torch.zeros(a.shape[1], n, dtype=torch.float64, device=a.device)
        by_distance.index_add_(1, self.distance.flatten(), a.double().sum(dim=0).flatten(1))
        self.sums["distance"][layer] += (by_distance / torch.arange(n, 0, -1, device=a.device)).cpu().numpy()

    def _content(self, later: Tensor, logs: Tensor) -> Tensor:
        """The score of a token on itself minus its mean score on others, averaged over queries, [B, H].

        Scores are read off the logarithms of the softmax's weights, which differ by the same amounts, and ALiBi's
        biases are taken out. Keys without any weight (masked, or underflown) are left out of the mean.
        """
        distance = self.distance[1:]
        others = (later > 0) & (distance > 0)
        scores = logs + self.slopes[:, None, None] * distance
        count = others.sum(dim=3).clamp(min=1)
        mean = torch.where(others, scores, 0.0).sum(dim=3) / count
        return (logs.diagonal(1, 2, 3) - mean).mean(dim=2)

    def means(self) -> dict[str, np.ndarray]:
        """Means over texts: scalars [L, H], `distance` and `sink` [L, H, N], `lambdas` [L]."""
        return {name: total / self.texts for name, total in {**self.sums, "lambdas": self.lambdas}.items()}


def gradients(model: PreTrainedModel, ids: Tensor) -> tuple[Tensor, Tensor]:
    """How strongly each input embedding moves the most probable next token: two measures, [B, N] each.

    They are the L2 norms of the gradient with respect to the embedding, and of the elementwise product of gradient
    and embedding (whose plain sum would vanish where embeddings are normalised first, as in BLOOM). The gradient
    is that of the log-probability. It equals the probability's gradient up to one factor per text, so the
    distributions over positions are the same, and it does not vanish where the model is certain.
    """
    embeddings = model.get_input_embeddings()(ids).detach().requires_grad_()
    last = {"logits_to_keep": 1} if "logits_to_keep" in inspect.signature(model.forward).parameters else {}
    with torch.enable_grad():
        logits = model(inputs_embeds=embeddings, use_cache=False, **last).logits[:, -1].float()
        most_probable = logits.log_softmax(-1).max(-1).values.sum()
        (gradient,) = torch.autograd.grad(most_probable, embeddings)
    gradient, embeddings = gradient.float(), embeddings.detach().float()
    return gradient.norm(dim=-1), (gradient * embeddings).norm(dim=-1)


def measure(
    model: PreTrainedModel, batches: Iterable[Tensor], n: int, slopes: np.ndarray, threshold: float
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Measures attention statistics over batches of `ids [B, N]`, and each text's influence by position.

    `slopes` [H] are ALiBi's, or zeros. Returns `Statistics.means` and, for each of `INFLUENCES`, the distributions
    [E, N] of the E texts over positions. Beside the model this needs memory for the layers' inputs, L B N D, and for
    the matrices of one layer, B H N^2: the rollout is computed from the last layer down, so the layers are called
    a second time in that order.
    """
    model.requires_grad_(False)
    decoder = Decoder(model)
    by_distance = torch.tensor(slopes, dtype=torch.float32, device=model.device)
    statistics = Statistics(decoder.n_layers, decoder.n_heads, n, by_distance, threshold)
    influence: dict[str, list[np.ndarray]] = {name: [] for name in INFLUENCES}
    for ids in batches:
        ids = ids.to(model.device)
        by_measure = dict(zip(INFLUENCES, gradients(model, ids)))
        with eager_attention(model):
            calls, strengths = decoder.read(ids)
            statistics.add_strengths(strengths)
            with_residuals = torch.zeros(len(ids), n, device=ids.device, dtype=torch.float64)
            with_residuals[:, -1] = 1.0
            without = with_residuals
            for layer in reversed(range(decoder.n_layers)):
                matrices = decoder.attention(layer, calls.pop())
                statistics.add(layer, matrices)
                mean = matrices.mean(dim=1).double()
                strength = strengths[layer].double().mean(dim=1, keepdim=True)
                carried = (with_residuals[:, None] @ mean)[:, 0]
                with_residuals = (1 - strength) * with_residuals + strength * carried
                without = (without[:, None] @ mean)[:, 0]
        by_measure |= {"rollout": with_residuals, "rollout_without_residuals": without}
        for name, values in by_measure.items():
            influence[name].append(normalized(values.double().cpu().numpy()))
    return statistics.means(), {name: np.concatenate(rows) for name, rows in influence.items()}
