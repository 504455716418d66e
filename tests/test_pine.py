"""PINE: the documents in any order are the same to the model, as in the paper, and one changes nothing."""

import sys

import pytest
import torch
from conftest import ROOT, kv_example
from transformers import DynamicCache

sys.path.append(str(ROOT / "benchmarks"))
import families

import posgap
from posgap.foundation.errors import PosgapError
from posgap.generation.generator import Sampling
from posgap.generation.setup import prompt_builder
from posgap.generation.transformers import TransformersGenerator
from posgap.mitigations.in_force import apply, config_needs_document_spans
from posgap.mitigations.pine import segments
from posgap.models.layout import during_forward
from posgap.models.loading import save_model
from posgap.tasks.prompts import Prompt

BEFORE, AFTER = [3, 4, 5], [20, 21, 22]
DOCUMENTS = [[6, 7, 8], [9, 10], [11, 12, 13, 14], [30, 31]]


def prompt(order=(0, 1, 2, 3)) -> tuple[list[int], list[tuple[int, int]]]:
    ids, spans = list(BEFORE), []
    for document in order:
        spans.append((len(ids), len(ids) + len(DOCUMENTS[document])))
        ids += DOCUMENTS[document]
    return ids + AFTER, spans


@torch.inference_mode()
def answered(model, order, response=(40, 41)) -> torch.Tensor:
    """The logits behind the documents: of the prompt's end, and of the tokens of a response."""
    ids, spans = prompt(order)
    with during_forward(model, spans, len(ids)):
        out = model(input_ids=torch.tensor([ids]), use_cache=True)
        rows = [out.logits[:, spans[-1][1] :]]
        for token in response:
            out = model(input_ids=torch.tensor([[token]]), past_key_values=out.past_key_values)
            rows.append(out.logits)
    return torch.cat(rows, dim=1)


@pytest.mark.parametrize(
    ("family", "settings"), [("llama", {"num_key_value_heads": 2}), ("qwen3", {}), ("gpt_neox", {})]
)
def test_the_order_of_the_documents_changes_nothing(family, settings):
    model = families.build(family, **settings)
    plain = [answered(model, order) for order in ((0, 1, 2, 3), (3, 1, 0, 2))]
    assert (plain[0] - plain[1]).abs().max() > 0.1
    apply(model, "pine", {})
    first, *others = [answered(model, order) for order in ((0, 1, 2, 3), (3, 1, 0, 2), (2, 3, 1, 0))]
    assert (first - plain[0]).abs().max() > 0.1
    for other in others:
        torch.testing.assert_close(other, first, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("spans", [[], [(3, 9)]])
def test_with_one_document_it_is_the_model_itself(spans):
    model, ids = families.build("llama"), torch.tensor([prompt()[0]])
    with torch.inference_mode(), during_forward(model, spans, 14):
        before = model(input_ids=ids).logits
        apply(model, "pine", {})
        assert torch.equal(model(input_ids=ids).logits, before)


def test_positions_and_mask_are_those_of_the_paper():
    """Section 3.3, a token and a head at a time."""
    model = families.build("llama", num_key_value_heads=2)
    apply(model, "pine", {})
    ids, spans = prompt()
    layer = model.model.layers[1].self_attn
    caught: list[tuple[torch.Tensor, torch.Tensor]] = []
    layer.register_forward_hook(lambda _, a, k, o: caught.append((k["hidden_states"][0], o[0][0])), with_kwargs=True)
    with torch.inference_mode(), during_forward(model, spans, len(ids)):
        model(input_ids=torch.tensor([ids]))
        ((states, out),) = caught
        wanted = layer.o_proj(naive(layer, states, spans, model.model.rotary_emb.inv_freq))
    torch.testing.assert_close(out, wanted, rtol=1e-4, atol=1e-4)


def naive(layer, states: torch.Tensor, spans: list[tuple[int, int]], frequencies: torch.Tensor) -> torch.Tensor:
    n, size, first, last = len(states), layer.head_dim, spans[0][0], spans[-1][1]
    query, key, value = (project(states).view(n, -1, size) for project in (layer.q_proj, layer.k_proj, layer.v_proj))
    of = [next((d for d, (a, b) in enumerate(spans) if a <= column < b), None) for column in range(n)]

    def turned(x: torch.Tensor, position: int) -> torch.Tensor:
        cos, sin = (position * frequencies).cos(), (position * frequencies).sin()
        a, b = x.chunk(2)
        return torch.cat([a * cos - b * sin, b * cos + a * sin])

    out = torch.zeros(n, query.shape[1], size, dtype=states.dtype)
    for head in range(query.shape[1]):
        keys, values = key[:, head * key.shape[1] // query.shape[1]], value[:, head * key.shape[1] // query.shape[1]]

        def importance(row: int, head=head, keys=keys) -> list[float]:
            seen = [c for c in range(first, last) if of[c] != of[row] or of[row] is None]
            weights = dict(zip(seen, (keys[seen] @ query[row, head] * size**-0.5).softmax(0).tolist()))
            return [sum(weights.get(c, 0.0) for c in range(a, b)) / (b - a) for a, b in spans]

        for row in range(n):
            # A document looks as one, and stands last itself.
            looking = range(*spans[of[row]]) if of[row] is not None else [row]
            scores = [sum(each) for each in zip(*map(importance, looking))]
            ranked = sorted(range(len(spans)), key=lambda d, row=row, scores=scores: (d != of[row], -scores[d]))
            place, starts = last, {}
            for document in ranked:
                place -= spans[document][1] - spans[document][0]
                starts[document] = place
            at = [starts[of[c]] + c - spans[of[c]][0] if of[c] is not None else c for c in range(n)]
            visible = [c for c in range(n) if (c <= row if None in (of[c], of[row]) or of[c] == of[row] else True)]
            score = torch.stack([turned(query[row, head], at[row]) @ turned(keys[c], at[c]) for c in visible])
            out[row, head] = (score * size**-0.5).softmax(0) @ values[visible]
    return out.flatten(1)


@pytest.mark.parametrize(
    ("ids", "spans", "found"),
    [
        # Nothing between the documents; a separator, which the first has not before it; a numbered heading.
        ([1, 5, 5, 6, 6, 2], [(1, 3), (3, 5)], (1, [3, 5])),
        ([1, 5, 9, 6, 9, 7, 2], [(1, 2), (3, 4), (5, 6)], (1, [2, 4, 6])),
        ([1, 9, 41, 8, 5, 9, 42, 8, 6, 2], [(4, 5), (8, 9)], (1, [5, 9])),
        ([8, 5, 9, 42, 8, 6, 2], [(1, 2), (5, 6)], (1, [2, 6])),
    ],
)
def test_what_stands_between_two_documents_belongs_to_the_later_one(ids, spans, found):
    assert segments(ids, spans) == found


@pytest.mark.parametrize(
    ("family", "settings", "reason"),
    [
        ("gemma2", {}, "its attention caps its scores"),
        ("gemma3_text", {}, "layers see a window of what was read"),
        ("bloom", {}, "its attention is no separate function"),
        ("smollm3", {}, "layer 3 does not turn queries and keys as Llama does"),
        ("llama", {"rope_parameters": families.DYNAMIC}, "its rotary embedding follow the length"),
    ],
)
def test_families_that_compute_otherwise_are_refused(family, settings, reason):
    model = families.build(family, **settings)
    with pytest.raises(PosgapError, match=reason):
        apply(model, "pine", {})


def test_a_prompt_is_read_whole_and_alone():
    model = families.build("llama")
    apply(model, "pine", {})
    ids, spans = prompt()
    with torch.inference_mode(), during_forward(model, spans, len(ids)):
        with pytest.raises(PosgapError, match="each in a batch of its own"):
            model(input_ids=torch.tensor([ids, ids]))
        with pytest.raises(PosgapError, match="read in pieces"):
            model(input_ids=torch.tensor([ids[:-1]]))
        cached = DynamicCache(config=model.config)
        cached.update(torch.zeros(1, 4, 2, 8), torch.zeros(1, 4, 2, 8), 0)
        with pytest.raises(PosgapError, match="read in pieces"):
            model(input_ids=torch.tensor([ids[2:]]), past_key_values=cached)


def test_it_reads_with_factors_of_layers():
    """Positions are moved by as much as each layer scales them."""
    model = families.build("llama")
    apply(model, "lpes", {"factors": [1.0, 2.0, 3.0, 1.5]})
    apply(model, "pine", {})
    torch.testing.assert_close(answered(model, (3, 1, 0, 2)), answered(model, (0, 1, 2, 3)), rtol=1e-4, atol=1e-4)


def test_prompts_are_answered_alike_in_any_order_and_must_say_where_documents_stand():
    model = families.build("llama")
    apply(model, "pine", {})
    generator = TransformersGenerator(model, families.Words(), 10_000)
    orders = ((0, 1, 2, 3), (3, 1, 0, 2), (2, 0, 3, 1))
    group = [Prompt("", ids, spans=tuple(spans)) for ids, spans in map(prompt, orders)]
    answers = [completion.token_ids for _, _, completion in generator.generate([group, group], Sampling(6))]
    assert len(answers) == 6 and all(answer == answers[0] for answer in answers)
    with pytest.raises(PosgapError, match="must know where the documents stand"):
        list(generator.generate([[Prompt("", prompt()[0])]], Sampling(6)))


def test_who_asks_a_model_in_force_or_saved_says_where_documents_stand(tokenizer, tmp_path):
    model = families.build("llama", vocab_size=len(tokenizer))
    assert not config_needs_document_spans(model.config)
    apply(model, "pine", {})
    assert config_needs_document_spans(model.config)
    few = {"max_new_tokens": 3, "max_unanswered": 100}
    swept = posgap.sweep(model, [kv_example(i) for i in range(2)], tokenizer=tokenizer, n_docs=4, **few)
    for _, rows in swept.frame.groupby("id"):
        assert len(rows) == 4 and rows[rows.position > 1].response.nunique() == 1
    save_model(model, tokenizer, tmp_path / "model")
    assert prompt_builder("kv", str(tmp_path / "model"), 0).marks_documents
