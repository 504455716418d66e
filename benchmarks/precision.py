"""What each precision of training leaves of a small KL and of its gradient, on pretrained models.

    python benchmarks/precision.py [--quick] [--models smollm2 qwen] [--examples 4] [--write]

The teacher reads a prompt of ten short records with the gold record first; the student is the same model with other
records in another order, with the gold record elsewhere, or with all matrices moved at random. In float32 the KL is
what it is; every other choice rounds what the products of the layers read and, but for tf32, write, forwards and
backwards, and adds up in float32, as the hardware does. The last line is JSON: the cosine of each choice's gradient
with float32's, where only the order of four records differs. `--quick` takes a random network, and holds rounding to
nothing against the model itself.
"""

import argparse
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from report import write_table
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from posgap.distillation.losses import token_kl
from posgap.foundation.tables import markdown

Rounding = Callable[[Tensor], Tensor]


def as_float32(x: Tensor) -> Tensor:
    return x


def as_bfloat16(x: Tensor) -> Tensor:
    return x.bfloat16().float()


def as_float16(x: Tensor) -> Tensor:
    return x.half().float()


def as_tf32(x: Tensor) -> Tensor:
    """To the nearest number with ten bits of fraction."""
    bits = x.contiguous().view(torch.int32)
    return ((bits + 0x0FFF + ((bits >> 13) & 1)) & ~0x1FFF).view(torch.float32)


def in_two_parts(x: Tensor) -> Tensor:
    """The sum of two bfloat16 numbers, whose products a GPU makes and adds up at a third of the speed."""
    rounded = as_bfloat16(x)
    return rounded + as_bfloat16(x - rounded)


class Choice(NamedTuple):
    """What the products of layers and of the output head are computed from, and what they are written as."""

    read: Rounding
    written: Rounding
    head: Rounding


CHOICES = {
    "bfloat16, the head too": Choice(as_bfloat16, as_bfloat16, as_bfloat16),
    "bfloat16, the head in float32 (posgap's)": Choice(as_bfloat16, as_bfloat16, as_float32),
    "bfloat16, products and head in float32": Choice(as_bfloat16, as_float32, as_float32),
    "float16, the head in float32": Choice(as_float16, as_float16, as_float32),
    "tf32, the head too (`--dtype tf32`)": Choice(as_tf32, as_float32, as_tf32),
    "two bfloat16 parts of each number": Choice(in_two_parts, in_two_parts, as_float32),
}
EXACT = Choice(as_float32, as_float32, as_float32)
# What differs between teacher and student: how far all matrices are moved, where the gold record stands, how many of
# the last records stand in the reverse order.
SETTINGS = {
    "moved by 1e-5": (1e-5, 1, 0),
    "moved by 1e-4": (1e-4, 1, 0),
    "two records in another order": (0.0, 1, 2),
    "four records in another order": (0.0, 1, 4),
    "gold record at 5": (0.0, 5, 0),
}


class _Product(torch.autograd.Function):
    """A linear layer whose factors, results and gradients are rounded."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, read: Rounding, written: Rounding) -> Tensor:  # type: ignore[override]
        x, weight = read(x), read(weight)
        ctx.save_for_backward(x, weight)
        ctx.read, ctx.has_bias = read, bias is not None
        return written(F.linear(x, weight, bias))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x, weight = ctx.saved_tensors
        gradient = ctx.read(gradient)
        rows = gradient.flatten(0, -2)
        to_weight = ctx.read(rows.T @ x.flatten(0, -2))
        return ctx.read(gradient @ weight), to_weight, rows.sum(0) if ctx.has_bias else None, None, None


class _Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, rounding: Rounding) -> Tensor:  # type: ignore[override]
        ctx.rounding = rounding
        return rounding(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return ctx.rounding(gradient), None


@contextmanager
def computed(model: PreTrainedModel, choice: Choice) -> Iterator[None]:
    """Within the block the model's products are rounded: of linear layers, and of queries with keys with values."""
    head = model.get_output_embeddings()
    linear = [module for module in model.modules() if isinstance(module, nn.Linear)]

    def forward_of(layer: nn.Linear) -> Callable[[Tensor], Tensor]:
        read, written = (choice.head, choice.head) if layer is head else (choice.read, choice.written)
        return lambda x: _Product.apply(x, layer.weight, layer.bias, read, written)

    plain = F.scaled_dot_product_attention

    def attention(query: Tensor, key: Tensor, value: Tensor, *args: Any, **options: Any) -> Tensor:
        query, key, value = (_Rounded.apply(x, choice.read) for x in (query, key, value))
        return _Rounded.apply(plain(query, key, value, *args, **options), choice.written)

    for layer in linear:
        layer.forward = forward_of(layer)  # type: ignore[method-assign]
    F.scaled_dot_product_attention = attention  # type: ignore[assignment]
    try:
        yield
    finally:
        F.scaled_dot_product_attention = plain
        for layer in linear:
            del layer.forward


class Prompts(NamedTuple):
    """Token ids of each example's prompt and response, and the number of response tokens."""

    ids: list[Tensor]
    predicted: list[int]


def prompts(tokenizer: Any, examples: int, gold: int, reversed_last: int) -> Prompts:
    """Key-value retrieval among ten records, with the right answer as the response."""
    generator, ids, predicted = torch.Generator().manual_seed(0), [], []
    for _ in range(examples):
        numbers = torch.randint(16**8, (10, 2), generator=generator).tolist()
        (key, value), *records = [(f"{key:08x}", f"{value:08x}") for key, value in numbers]
        records.insert(gold - 1, (key, value))
        if reversed_last:
            records[-reversed_last:] = records[: -reversed_last - 1 : -1]
        written = ",\n ".join(f'"{key}": "{value}"' for key, value in records)
        text = (
            "Extract the value corresponding to the specified key in the JSON object below.\n\n"
            f'JSON data:\n{{{written}}}\n\nKey: "{key}"\nCorresponding value:'
        )
        message = [{"role": "user", "content": text}]
        prompt = tokenizer.apply_chat_template(message, add_generation_prompt=True, return_dict=False)
        response = [*tokenizer(f'"{value}"', add_special_tokens=False).input_ids, tokenizer.eos_token_id]
        ids.append(torch.tensor([[*prompt, *response]]))
        predicted.append(len(response))
    return Prompts(ids, predicted)


def logits_of(model: PreTrainedModel, of: Prompts, i: int) -> Tensor:
    """The logits `[T, V]` before each response token."""
    hidden = model.base_model(input_ids=of.ids[i], use_cache=False).last_hidden_state
    return model.get_output_embeddings()(hidden[0, -of.predicted[i] - 1 : -1])


def kl_and_gradient(
    model: PreTrainedModel, choice: Choice, teacher: Prompts, student: Prompts, moved: float
) -> tuple[float, list[Tensor]]:
    """The mean KL of a response token, and its gradient by each parameter."""
    model.zero_grad()
    with computed(model, choice), torch.no_grad():
        wanted = [logits_of(model, teacher, i) for i in range(len(teacher.ids))]
    _move(model, moved)
    total = 0.0
    with computed(model, choice):
        for i, logits in enumerate(wanted):
            loss = token_kl(logits, logits_of(model, student, i)).mean() / len(wanted)
            loss.backward()
            total += float(loss.detach())
    _move(model, -moved)
    return total, [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


def _move(model: PreTrainedModel, by: float) -> None:
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if by and parameter.dim() > 1:
                parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=by)


def cosine(a: list[Tensor], b: list[Tensor]) -> float:
    inner = lambda x, y: sum(float((p.double() * q.double()).sum()) for p, q in zip(x, y))  # noqa: E731
    return inner(a, b) / (inner(a, a) * inner(b, b)) ** 0.5


def table_of(model: PreTrainedModel, tokenizer: Any, examples: int) -> tuple[list[list[str]], dict[str, float]]:
    """The rows of the table, and each choice's cosine where four records stand in another order."""
    teacher = prompts(tokenizer, examples, 1, 0)
    exact, rows = [], [[name] for name in CHOICES]
    figures: dict[str, float] = {}
    for name, (moved, gold, reversed_last) in SETTINGS.items():
        student = prompts(tokenizer, examples, gold, reversed_last)
        kl, reference = kl_and_gradient(model, EXACT, teacher, student, moved)
        exact.append(f"{kl:.1e}")
        for row, (choice_name, choice) in zip(rows, CHOICES.items()):
            seen, rounded = kl_and_gradient(model, choice, teacher, student, moved)
            same = cosine(rounded, reference)
            row.append(f"{seen:.1e}, {same:.3f}")
            if name.startswith("four"):
                figures[choice_name] = round(same, 3)
    return [["float32", *exact], *rows], figures


def quick() -> dict[str, float]:
    """Rounding to float32 is the model itself, to the bit."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2,
        )
    )  # fmt: skip
    of = Prompts([torch.arange(24)[None]], [6])
    plain = logits_of(model, of, 0)
    with computed(model, EXACT):
        assert torch.equal(logits_of(model, of, 0), plain)
    other = Prompts([torch.cat([torch.arange(9, -1, -1), torch.arange(10, 24)])[None]], [6])
    loss = token_kl(plain.detach(), logits_of(model, other, 0)).mean()
    loss.backward()
    gradient = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    kl, again = kl_and_gradient(model, EXACT, of, other, 0.0)
    assert kl == loss.item() and cosine(again, gradient) > 1 - 1e-9
    return {
        name: round(cosine(kl_and_gradient(model, choice, of, other, 0.0)[1], gradient), 3)
        for name, choice in CHOICES.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--models", nargs="+", default=["smollm2", "qwen"])
    parser.add_argument("--examples", type=int, default=4)
    parser.add_argument("--write", action="store_true", help="put the tables into docs/distillation.md")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.quick:
        print(json.dumps(quick()))
        return
    from real_models import MODELS, folder

    figures, tables = {}, []
    for name in options.models:
        path = str(folder(name))
        model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
        rows, figures[name] = table_of(model, AutoTokenizer.from_pretrained(path), options.examples)
        tables.append(
            f"**{MODELS[name].title}**: KL, and the cosine of its gradient\n\n{markdown(['', *SETTINGS], rows)}"
        )
        print(tables[-1], flush=True)
    if options.write:
        write_table("precision", "\n\n".join(tables))
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
