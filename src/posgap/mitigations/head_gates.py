"""Gates of attention heads: what each head adds to the stream is multiplied by a number.

A gate of 1 leaves a head as it is, and 0 takes it out. A head's output enters the stream through its own inputs of the
projection that follows attention, so that a gate is a factor of these. Which heads help or hurt is read off the
gradient of the right responses' log-probability by the gates, one backward pass for all heads at once (Michel et al.
2019, section 4.1; theirs is the absolute value of that of the loss, by which heads are taken out; here the sign counts,
and heads are turned down or up).
"""

from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from pydantic import Field

from posgap.foundation.errors import PosgapError
from posgap.foundation.progress import track
from posgap.mitigations.channel_scaling import decoder_layers
from posgap.mitigations.mitigation import ModelMitigation, Settings, TriedOn, Undo
from posgap.models.patching import all_of, forward_few_tokens, last_logits, name_of

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor, nn
    from transformers import PretrainedConfig, PreTrainedModel

STEPS = (0.2, 0.4, 0.6)  # the greatest change of a gate that is tried
_PROJECTIONS = ("o_proj", "out_proj", "dense", "c_proj", "wo")
_NAME = "head-gates"


class Gates(Settings):
    """One number for each attention head of each layer, `[L][H]`, from 0 (taken out) on."""

    gates: tuple[tuple[Annotated[float, Field(ge=0, le=10)], ...], ...]


# A prompt and its right response, as token ids.
Question = tuple[Sequence[int], Sequence[int]]


class Effects(NamedTuple):
    """Of Q questions, the log-probability of the right response [Q], in nats, and by how much it rises with each
    head's gate, [Q, L, H]: its derivative where all gates are 1."""

    log_probability: "np.ndarray"
    by_gate: "np.ndarray"


class Answered(NamedTuple):
    """Of Q questions, the log-probability of the right response [Q], in nats, and whether greedy decoding gives it."""

    log_probability: "np.ndarray"
    right: "np.ndarray"


def head_effects(model: "PreTrainedModel", questions: Sequence[Question], batch_tokens: int = 4096) -> Effects:
    """What each head's gate does to the right responses of `questions`, by one backward pass of each batch:
    neighbours of equal lengths, at most `batch_tokens` tokens.

    Raises `PosgapError` for a family whose heads cannot be told apart.
    """
    import numpy as np
    import torch

    inputs, n_heads = _projections(model), _n_heads(model)
    _require_heads(model, inputs, n_heads)
    model.requires_grad_(False)
    values, derivatives = [], []
    batches = _alike(questions, batch_tokens)
    for batch in track(batches, len(batches), "what each head does to right answers"):
        gates = torch.ones(len(inputs), len(batch), n_heads, device=model.device, requires_grad=True)
        with ExitStack() as hooks, torch.enable_grad():
            for projection, own in zip(inputs, gates):
                hooks.callback(_gated(projection, own))
            said, _ = _said(model, batch)
            (derivative,) = torch.autograd.grad(said.sum(), gates)
        values.append(said.detach().cpu().numpy())
        derivatives.append(derivative.transpose(0, 1).float().cpu().numpy())
    return Effects(np.concatenate(values), np.concatenate(derivatives))


def answered(model: "PreTrainedModel", questions: Sequence[Question], batch_tokens: int = 4096) -> Answered:
    """What the model as it is makes of `questions`, in the same batches."""
    import numpy as np
    import torch

    with torch.inference_mode():
        read = [_said(model, batch) for batch in _alike(questions, batch_tokens)]
    said, right = (np.concatenate([each.cpu().numpy() for each in part]) for part in zip(*read))
    return Answered(said, right)


def _said(model: "PreTrainedModel", batch: "Sequence[Question]") -> "tuple[Tensor, Tensor]":
    """The right responses' log-probabilities [B], and whether each of their tokens is ranked first [B]."""
    import torch

    ids = torch.tensor([[*prompt, *response[:-1]] for prompt, response in batch], device=model.device)
    right = torch.tensor([list(response) for _, response in batch], device=model.device)
    n = right.shape[1]
    logits = model(input_ids=ids, use_cache=False, **last_logits(model, n)).logits[:, -n:]
    logits = logits if logits.dtype.itemsize >= 4 else logits.float()
    said = logits.log_softmax(-1).gather(-1, right[..., None])[..., 0].sum(1)
    return said, (logits.argmax(-1) == right).all(1)


def turned(direction: "np.ndarray", step: float) -> Gates:
    """The gates along a `direction` [L, H] of change, of which the greatest is to be `step`; none below 0."""
    import numpy as np

    change = step * direction / max(float(np.abs(direction).max()), 1e-12)
    return Gates(gates=tuple(tuple(float(max(0.0, 1 + each)) for each in row) for row in change))


def flattening(effects: Effects) -> "np.ndarray":
    """By how much the log-probability of the questions below the median rises with each gate on average, [L, H]."""
    import numpy as np

    weak = effects.log_probability <= np.median(effects.log_probability)
    return effects.by_gate[weak].mean(axis=0)


def _alike(questions: Sequence[Question], batch_tokens: int) -> list[list[Question]]:
    """Neighbours with prompts and responses of equal lengths, at most `batch_tokens` tokens together."""
    groups: list[list[Question]] = []
    for prompt, response in questions:
        lengths = len(prompt), len(response)
        fits = groups and (len(groups[-1]) + 1) * sum(lengths) <= batch_tokens
        if fits and tuple(map(len, groups[-1][0])) == lengths:
            groups[-1].append((prompt, response))
        else:
            groups.append([(prompt, response)])
    return groups


def _n_heads(model: "PreTrainedModel") -> int:
    return int(model.config.get_text_config().num_attention_heads)


def _projections(model: "PreTrainedModel") -> "list[nn.Module]":
    """Each layer's projection of its heads' outputs into the stream."""
    from torch import nn

    where = f"{name_of(model)}: {_NAME}"
    found: list[nn.Module] = []
    for index, layer in enumerate(decoder_layers(model, _NAME)):
        attentions = [module for module in layer.modules() if type(module).__name__.endswith("Attention")]
        named = [getattr(module, name) for module in attentions for name in _PROJECTIONS if hasattr(module, name)]
        if len(named) != 1 or not isinstance(named[0], nn.Module):
            raise PosgapError(
                f"{where}: layer {index} has no single attention with one of the output projections known here "
                f"({', '.join(_PROJECTIONS)})"
            )
        found.append(named[0])
    return found


def _gated(projection: "nn.Module", gates: "Tensor") -> Undo:
    """Multiplies the heads' outputs, as `projection` reads them, by `gates [H]`, or by `[B, H]`, a row's own."""

    def before(module: "nn.Module", args: tuple, kwargs: dict) -> "tuple[tuple, dict]":
        outputs, *more = args
        own = gates.to(outputs.device, outputs.dtype)
        by_row = own[:, None] if own.ndim == 2 else own  # over the tokens of a row
        heads = outputs.unflatten(-1, (gates.shape[-1], -1)) * by_row[..., None]
        return (heads.flatten(-2), *more), kwargs

    return projection.register_forward_pre_hook(before, with_kwargs=True).remove


def _apply(model: "PreTrainedModel", settings: Gates) -> Undo:
    import torch

    inputs = _checked(model, settings)
    return all_of([_gated(projection, torch.tensor(row)) for projection, row in zip(inputs, settings.gates)])


def _checked(model: "PreTrainedModel", settings: Gates) -> "list[nn.Module]":
    """The projections, of a model that can have these gates; else `PosgapError`."""
    inputs, n_heads = _projections(model), _n_heads(model)
    where = f"{name_of(model)}: {_NAME}"
    if len(settings.gates) != len(inputs) or any(len(row) != n_heads for row in settings.gates):
        raise PosgapError(f"{where}: give a gate for each of {n_heads} heads in each of {len(inputs)} layers")
    _require_heads(model, inputs, n_heads)
    return inputs


def _in_weights(model: "PreTrainedModel", settings: Gates) -> "dict[str, Tensor]":
    """What multiplies each projection's weights: a head's gate for all the columns that read it. A bias stays as it is,
    since it is no head's."""
    import torch
    from torch import nn
    from transformers.pytorch_utils import Conv1D

    inputs, names = _checked(model, settings), {module: name for name, module in model.named_modules()}
    factors: dict[str, Tensor] = {}
    for projection, row in zip(inputs, settings.gates):
        name = f"{names[projection]}.weight"
        if not isinstance(projection, nn.Linear | Conv1D) or name in factors:
            raise PosgapError(
                f"{name_of(model)}: {_NAME}: {names[projection]} has no weights of its own that a head's gate could "
                "multiply; leave `in_weights` out"
            )
        transposed = isinstance(projection, Conv1D)  # [in, out], where nn.Linear has [out, in]
        width = projection.weight.shape[0 if transposed else 1]
        by_column = torch.tensor(row, dtype=torch.float64).repeat_interleave(width // len(row))
        factors[name] = by_column[:, None] if transposed else by_column
    return factors


def _require_heads(model: "PreTrainedModel", inputs: "Sequence[nn.Module]", n_heads: int) -> None:
    """`PosgapError` unless every projection is given all heads' outputs side by side as a prompt is read."""
    import torch

    where = f"{name_of(model)}: {_NAME}"
    widths: dict[int, int] = {}

    def seen(index: int) -> Any:
        def before(module: "nn.Module", args: tuple) -> None:
            if args and isinstance(args[0], torch.Tensor) and args[0].ndim == 3:
                widths[index] = args[0].shape[-1]

        return before

    with ExitStack() as hooks, torch.inference_mode():
        for index, projection in enumerate(inputs):
            hooks.callback(projection.register_forward_pre_hook(seen(index)).remove)
        forward_few_tokens(model)
    for index in range(len(inputs)):
        if index not in widths or widths[index] % n_heads:
            raise PosgapError(
                f"{where}: layer {index} projects something else than the outputs of {n_heads} heads side by side"
            )


def _tried(tried_on: TriedOn) -> Sequence[Gates]:
    """Gates along the gradient of the weaker half of the right responses; where none are known, of each prompt's own
    last token, which tells what the model reads and not where it fails."""
    questions = tried_on.questions or [(prompt[:-1], prompt[-1:]) for prompt in tried_on.prompts]
    direction = flattening(head_effects(tried_on.model, questions))
    return [turned(direction, step) for step in STEPS]


def _neutral(config: "PretrainedConfig") -> Gates:
    text = config.get_text_config()
    return Gates(gates=((1.0,) * text.num_attention_heads,) * text.num_hidden_layers)


HEAD_GATES = ModelMitigation(
    name=_NAME,
    help="what each attention head adds is turned down or up, by the gradient of right answers",
    level="attention",
    source="Michel et al. 2019, section 4.1, arXiv 1905.10650 (importance); the rest is posgap's own",
    cost="one multiplication of each head's output",
    price=1.1,
    served_by=("transformers",),
    settings=Gates,
    apply=_apply,
    neutral=_neutral,
    tried=_tried,
    in_weights=_in_weights,
    forces=True,
)
