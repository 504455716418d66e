"""Attention statistics and input-token influence of a decoder, batch by batch."""

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from posgap.foundation.errors import PosgapError
from posgap.models.patching import last_logits
from posgap.rollout.attributions import ROUNDING, HeadOutputs, matrix_of
from posgap.rollout.decoders import Call, Decoder, LayerReading
from posgap.rollout.distributions import normalize
from posgap.rollout.documents import MeasuredPrompt, by_document

INFLUENCES = ("gradient", "gradient_times_input", "rollout", "rollout_without_residuals")
# Measured only if a family's attention does nothing but weigh values and project them.
OF_VALUES = ("value_norm", "gradient_rollout")
PER_HEAD = ("first_mass", "diagonal_mass", "entropy", "content", "unattended")  # means over queries


class Statistics:
    """Collects attention statistics by layer and head over texts of at most `longest` tokens.

    Means over queries leave out the first query, which sees only itself.
    """

    def __init__(self, n_layers: int, n_heads: int, longest: int, slopes: Tensor, threshold: float):
        self.longest = longest
        self.slopes = slopes
        self.threshold = threshold
        self.texts = 0
        self.sums = {name: np.zeros((n_layers, n_heads)) for name in PER_HEAD}
        self.sums |= {name: np.zeros((n_layers, n_heads, longest)) for name in ("distance", "sink")}
        self.lambdas = np.zeros(n_layers)
        self.visible = [Visible() for _ in range(n_layers)]
        self.at_distance = np.zeros(longest)  # how many queries have a token so far before them
        self.sees = np.zeros((n_layers, longest))  # how many queries see each token

    def add_texts(self, texts: int, n: int) -> None:
        """Counts this number of texts of n tokens."""
        self.texts += texts
        self.at_distance[:n] += texts * np.arange(n, 0, -1)

    def add_strengths(self, layer: int, strengths: Tensor) -> None:
        """Adds the residual strengths [B, N] of a layer."""
        self.lambdas[layer] += float(strengths.double().mean(dim=1).sum())

    def add_attention(self, layer: int, first: int, a: Tensor, seen: Tensor) -> None:
        """Adds the attention `a [B, H, Q, N]` of one layer's queries from `first` on (0 is the text's first), which
        may attend to the tokens `seen [Q, N]`."""
        n = a.shape[3]
        self.visible[layer].add_queries(first, seen)
        self.sees[layer, :n] += len(a) * seen.sum(dim=0).cpu().numpy()
        queries = torch.arange(first, first + a.shape[2], device=a.device)
        distance = queries[:, None] - torch.arange(n, device=a.device)
        sums = self.sums["distance"][layer], self.sums["sink"][layer]
        by_distance = torch.zeros(a.shape[1], n, dtype=torch.float64, device=a.device)
        by_distance.index_add_(1, distance.clamp(min=0).flatten(), a.double().sum(dim=0).flatten(1))
        sums[0][:, :n] += by_distance.cpu().numpy()
        sums[1][:, :n] += (a > self.threshold).sum(dim=(0, 2)).cpu().numpy()
        if not first:
            a = a[:, :, 1:]
            distance = distance[1:]
            queries = queries[1:]
        if not len(queries):
            return
        logs = torch.where(a > 0, a, 1.0).log()
        own = queries[:, None].expand(*a.shape[:2], -1, 1)
        per_query = {
            "first_mass": a[..., 0],
            "diagonal_mass": a.gather(3, own)[..., 0],
            "entropy": -(a * logs).sum(dim=3),
            "content": self._content(a, logs, distance, own),
            "unattended": 1 - a.double().sum(dim=3),
        }
        for name, values in per_query.items():
            self.sums[name][layer] += values.double().sum(dim=(0, 2)).cpu().numpy() / (n - 1)

    def _content(self, a: Tensor, logs: Tensor, distance: Tensor, own: Tensor) -> Tensor:
        """The score of a token on itself minus its mean score on others, [B, H, Q].

        Scores are read off the logarithms of the softmax's weights, which differ by the same amounts, and ALiBi's
        biases are taken out. Keys without any weight (masked, or underflown) are left out of the mean.
        """
        others = (a > 0) & (distance > 0)
        scores = logs + self.slopes[:, None, None] * distance
        mean = torch.where(others, scores, 0.0).sum(dim=3) / others.sum(dim=3).clamp(min=1)
        return logs.gather(3, own)[..., 0] - mean

    def means(self) -> dict[str, np.ndarray]:
        """Means over texts: scalars [L, H], `distance` and `sink` [L, H, longest], `lambdas` [L].

        Attention at a distance is a mean over the queries with enough tokens before them. A key's sinks are counted
        among the queries that see it; with a window these are few.
        """
        counts: dict[str, np.ndarray | int] = {"distance": self.at_distance, "sink": self.sees[:, None].clip(min=1)}
        means = {name: total / counts.get(name, self.texts) for name, total in self.sums.items()}
        return means | {"lambdas": self.lambdas / self.texts}


class Visible:
    """Which tokens the queries of a layer see, in the first batch, which has the longest texts."""

    def __init__(self) -> None:
        self.queries = 0
        self.by_key = np.zeros(0, dtype=int)  # how many queries see each key
        self.farthest = 0  # the greatest distance to a key that a query sees
        self.ahead = False  # whether a query sees a later token

    def add_queries(self, first: int, seen: Tensor) -> None:
        """Adds which tokens the queries from `first` on see, [Q, N]; those known already are passed over."""
        if not self.queries:
            self.by_key = np.zeros(seen.shape[1], dtype=int)
        if 0 < len(self.by_key) <= self.queries:
            return
        queries, keys = seen.nonzero(as_tuple=True)
        distances = queries + first - keys
        self.by_key += seen.sum(dim=0).cpu().numpy()
        self.farthest = max(self.farthest, int(distances.max()))
        self.ahead |= bool((distances < 0).any())
        self.queries += len(seen)

    def window(self) -> int | None:
        """Returns the number of tokens that a token sees, itself included: the longest text's if it sees all before it;
        None if it sees no window that ends with it."""
        width = self.farthest + 1
        n = len(self.by_key)
        whole = np.minimum(n - np.arange(n), width)
        return None if self.ahead or (self.by_key != whole).any() else width


def gradients(
    model: PreTrainedModel, ids: Tensor, writers: Sequence[nn.Module] = ()
) -> tuple[tuple[Tensor, Tensor], list[Tensor]]:
    """Returns how strongly each input embedding moves the most probable next token, by two measures, [B, N] each; and
    the gradient with respect to the output of each of the modules `writers`, [B, N, D] each.

    The measures are the L2 norms of the gradient with respect to the embedding, and of the elementwise product of
    gradient and embedding (its plain sum would vanish if embeddings are normalised first, as in BLOOM). The gradient is
    that of the log-probability. It equals the probability's gradient up to one factor per text, so the distributions
    over positions are the same, and it does not vanish if the model is certain.
    """
    given: list[Tensor] = []
    written: dict[nn.Module, Tensor] = {}

    def replace_embeddings(module: nn.Module, args: tuple, output: Tensor) -> Tensor:
        given.append(output.detach().requires_grad_())
        return given[-1].clone()  # some families (CTRL) scale it in place

    def note_output(module: nn.Module, args: tuple, output: Tensor) -> None:
        written[module] = output

    # The ids are given, and not embeddings, since some families (DeepSeek-V4) route by them.
    with ExitStack() as hooks, torch.enable_grad():
        hooks.callback(model.get_input_embeddings().register_forward_hook(replace_embeddings).remove)
        for writer in writers:
            hooks.callback(writer.register_forward_hook(note_output).remove)
        logits = model(input_ids=ids, use_cache=False, **last_logits(model, 1)).logits[:, -1].float()
        most_probable = logits.log_softmax(-1).max(-1).values.sum()
        embeddings = given[0]
        gradient, *of_written = torch.autograd.grad(most_probable, [embeddings, *(written[each] for each in writers)])
    gradient = gradient.float()
    embeddings = embeddings.detach().float()
    return (gradient.norm(dim=-1), (gradient * embeddings).norm(dim=-1)), of_written


class MeasuredInfluence(NamedTuple):
    """A model's measurements: `Statistics.means`; the distribution [N] of each of the E texts over its tokens, by
    measure; by layer, the tokens that a token sees (None: no window) and RoPE's angles (see `Decoder.frequencies`); the
    share of either rollout that went to no token, but to the logits of sinks beside them; and the numbers of the L
    layers, and what mixes tokens beside their attention, in words. `documents` is the last token's attention to each
    document of a prompt, [E, L, H, n], if documents were `asked`. `no_value_norm` says why the measures `OF_VALUES` are
    missing; it is empty if they are not."""

    statistics: dict[str, np.ndarray]
    influence: dict[str, list[np.ndarray]]
    windows: list[int | None]
    frequencies: list[list[float] | None]
    unattended: dict[str, float]
    layers: list[int]
    mixing: str
    documents: np.ndarray | None = None
    no_value_norm: str = ""


def measure_influence(
    model: PreTrainedModel,
    batches: Iterable[Tensor],
    longest: int,
    slopes: np.ndarray,
    threshold: float,
    asked: Sequence[MeasuredPrompt] = (),
) -> MeasuredInfluence:
    """Measures attention statistics over batches of `ids [B, N]`, and each text's influence by token.

    Batches may differ in N; none exceeds the first one's, which is `longest`. `slopes` [H] are ALiBi's, or zeros;
    `asked` has the places of the prompts' documents. Besides the model this needs memory for the layers' inputs and for
    gradients of their attention's output, L B N D each, and for the attention of one block of queries
    (`decoders.WEIGHTS_AT_ONCE`), or of a whole layer, B H N^2, in families whose attention cannot be replaced. The
    rollout is computed from the last layer down, so the layers are called again in that order.

    `value_norm` is the rollout with each layer's attention replaced by the norms |sum_h a_hij f_h(x_j)| of its input
    from each token, normalised over j; f_h is the values and the output projection, without the latter's bias
    (Kobayashi et al. 2020, "Attention is Not Only a Weight", section 3). It needs B N H^2 numbers more.
    `gradient_rollout` weighs each layer's attention by its gradient: with G_hij the derivative of the most probable
    next token's log-probability by a_hij, it is the last row of the product over layers of I + mean_h max(0, G_hij
    a_hij), less the last token's own 1 (Chefer et al. 2021, "Generic Attention-model Explainability", equations 5 and
    6). Both are left out if a family's attention does more than weigh values and project them, which the first text
    shows.
    """
    model.requires_grad_(False)
    decoder = Decoder(model)
    by_distance = torch.tensor(slopes, dtype=torch.float32, device=model.device)
    statistics = Statistics(decoder.n_layers, decoder.n_heads, longest, by_distance, threshold)
    influence: dict[str, list[np.ndarray]] = {name: [] for name in INFLUENCES}
    no_value_norm = ""
    kept: dict[str, list[np.ndarray]] = {name: [] for name in ("rollout", "rollout_without_residuals")}
    attention: list[np.ndarray] = []
    for ids in batches:
        ids = ids.to(model.device)
        if not statistics.texts:
            no_value_norm = _no_value_norm(decoder, ids[:1], by_distance)
            influence |= {name: [] for name in OF_VALUES if not no_value_norm}
        of_inputs, of_written = gradients(model, ids, [] if no_value_norm else decoder.writers())
        by_measure = dict(zip(INFLUENCES, of_inputs))
        with decoder.capturing():
            calls, states = decoder.record_calls(ids)
            of_batch, last = _layer_by_layer(decoder, calls, ids, statistics, None if no_value_norm else of_written)
        by_measure |= of_batch
        if asked:
            of_prompts = asked[sum(map(len, attention)) :][: len(ids)]
            attention.append(np.stack([by_document(rows, each.spans) for rows, each in zip(last, of_prompts)]))
        if not influence["rollout"]:
            decoder.require_usual_states(ids, states)
        for name in kept:
            kept[name].append(by_measure[name].sum(dim=1).cpu().numpy())
        for name, values in by_measure.items():
            influence[name].extend(normalize(values.double().cpu().numpy()))
    return MeasuredInfluence(
        statistics.means(),
        influence,
        [seen.window() for seen in statistics.visible],
        decoder.frequencies,
        {name: 1 - float(np.concatenate(rows).mean()) for name, rows in kept.items()},
        decoder.numbers,
        decoder.mixing(),
        np.concatenate(attention) if attention else None,
        no_value_norm,
    )


def _no_value_norm(decoder: Decoder, ids: Tensor, slopes: Tensor) -> str:
    """Why `OF_VALUES` cannot be measured on a text `ids [1, N]`; empty if they can."""
    statistics = Statistics(decoder.n_layers, decoder.n_heads, ids.shape[1], slopes, 1.0)
    try:
        with decoder.capturing():
            calls, _ = decoder.record_calls(ids)
            _layer_by_layer(decoder, calls, ids, statistics, [None] * decoder.n_layers)
    except (_Unreadable, PosgapError) as reason:  # the latter is reported even if all else is measured
        return str(reason)
    return ""


class _Unreadable(Exception):
    """A family's attention does more than weigh values and project them."""


class _LayerRollouts:
    """Carries the last token's row of each rollout down through a layer: with residual connections, without, and, given
    the `projection` of the layer's heads, with value norms; given the `gradient` [B, N, D] with respect to its output,
    by gradients too."""

    def __init__(
        self, layer: int, rows: Tensor, statistics: Statistics, projection: nn.Module | None, gradient: Tensor | None
    ):
        self.layer = layer
        self.rows = rows
        self.statistics = statistics
        self.into = torch.zeros_like(rows)
        self.projection = projection
        self.gradient = gradient
        self.last = torch.empty(0)  # the last token's attention, [B, H, N]
        self.written: HeadOutputs | None = None

    def take(self, first: int, a: Tensor, seen: Tensor, values: Tensor | None) -> None:
        self.statistics.add_attention(self.layer, first, a, seen)
        of_queries = self.rows[:, :, None, first : first + a.shape[2]]
        self.last = a[:, :, -1].clone()  # a view would keep the whole block
        self.into[:2] += (of_queries[:2] @ a.mean(dim=1).double())[:, :, 0]
        if self.projection is not None and values is not None:
            if self.written is None:
                matrix = matrix_of(self.projection, a.shape[1] * values.shape[3], values)
                self.written = HeadOutputs(values, matrix)
            self.into[2] += (of_queries[2] @ self.written.shares(a).double())[:, 0]
            if self.gradient is not None:
                gradient = self.written.gradients(self.gradient[:, first : first + a.shape[2]])
                self.into[3] += (of_queries[3] @ (gradient * a).clamp(min=0).mean(dim=1).double())[:, 0]


def _layer_by_layer(
    decoder: Decoder, calls: list[Call], ids: Tensor, statistics: Statistics, gradients: Sequence[Tensor | None] | None
) -> tuple[dict[str, Tensor], np.ndarray]:
    """The influence in a batch `ids [B, N]` by measure, [B, N] each, and the last token's attention [B, L, H, N].

    `gradients` [L] are those with respect to what each layer's attention writes; without any, `OF_VALUES` are left out.
    Layers are called again, with the `calls` of `record_calls`, from the last one down; their further findings are
    added to `statistics`.
    """
    statistics.add_texts(*ids.shape)
    of_values = gradients is not None
    rows = torch.zeros(4 if of_values else 2, *ids.shape, device=ids.device, dtype=torch.float64)
    rows[:, :, -1] = 1.0
    last = []
    for layer in reversed(range(decoder.n_layers)):
        call = calls.pop()
        projection = _projection(decoder, layer, call) if of_values else None
        carried = _LayerRollouts(layer, rows, statistics, projection, gradients[layer] if gradients else None)
        attended = decoder.attend(layer, call, carried.take)
        statistics.add_strengths(layer, attended.strengths)
        last.append(carried.last.cpu().numpy())
        if of_values:
            _require_plain_attention(
                f"{type(decoder.model).__name__}, layer {decoder.numbers[layer]}", attended, carried
            )
        strength = attended.strengths.double().mean(dim=1, keepdim=True)
        mixed = (1 - strength) * rows + strength * carried.into
        rows = torch.stack([mixed[0], carried.into[1], *mixed[2:3], *(rows + carried.into)[3:]])
    rows[3:, :, -1] -= 1.0
    influence = dict(zip(("rollout", "rollout_without_residuals", *OF_VALUES), rows))
    return influence, np.stack(last[::-1], axis=1)


def _projection(decoder: Decoder, layer: int, call: Call) -> nn.Module:
    projection = decoder.projection(layer, call) if decoder.replaceable else None
    if projection is None:
        raise _Unreadable(
            f"{type(decoder.model).__name__}: its attention cannot be replaced, so its values cannot be read"
        )
    return projection


@torch.no_grad()
def _require_plain_attention(where: str, attended: LayerReading, carried: _LayerRollouts) -> None:
    """Raises `_Unreadable` if a layer's projection does not get the sums of the heads' values by their weights."""
    made = carried.written.heads(carried.last) if carried.written else None
    off = torch.inf if made is None or attended.heads is None else float((attended.heads.float() - made).norm())
    if made is None or not off <= ROUNDING * float(made.norm()):
        raise _Unreadable(
            f"{where}: its attention's output is not its weights times its values (it has a gate or an inner "
            "normalisation)"
        )
