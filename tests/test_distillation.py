"""From responses to batches, teacher distributions and the R1 objective."""

import copy
from itertools import pairwise

import pytest
import torch
from accelerate import Accelerator
from conftest import kv_example
from hypothesis import given, settings
from hypothesis import strategies as st

from posgap.distillation.batches import Collator, Draw, Pair, pair_up, plan, share
from posgap.distillation.engine import Optimization, train
from posgap.distillation.losses import alignment_weights, response_kl
from posgap.distillation.r1 import R1
from posgap.distillation.teacher_states import TeacherStates
from posgap.errors import PosgapError
from posgap.tasks.placements import Placement
from posgap.tasks.prompts import PromptBuilder, get_task
from posgap.tasks.responses import Response

N_DOCS = 5


def responses(lengths=(2, 3, 1, 2)) -> list[Pair]:
    """Examples with made-up responses of these lengths, all at position 1."""
    return [
        Pair(
            kv_example(i),
            Response(
                id=f"kv-{i}",
                placement=[1],
                n_docs=N_DOCS,
                response="",
                token_ids=[25 + i + t for t in range(length - 1)] + [2],
                correct=True,
            ),
        )
        for i, length in enumerate(lengths)
    ]


@pytest.fixture
def pairs():
    return responses()


@pytest.fixture
def collate(pairs, tokenizer):
    return Collator(pairs, PromptBuilder(get_task("kv"), tokenizer, 512, 4))


@settings(deadline=None)
@given(st.integers(1, 30), st.integers(3, 20), st.integers(1, 3), st.integers(1, 8), st.integers(0, 9), st.data())
def test_the_plan_takes_every_pair_once_an_epoch_at_k_trivial_positions(n, n_docs, epochs, batch, seed, data):
    advantageous = data.draw(st.integers(1, n_docs))
    k = data.draw(st.integers(1, n_docs - 1))
    steps = plan(n, n_docs, advantageous, k, epochs, batch, seed)
    draws = [draw for step in steps for draw in step]
    for epoch in range(epochs):
        assert sorted(d.pair for d in draws[epoch * n : (epoch + 1) * n]) == list(range(n))
    for draw in draws:
        assert len(set(draw.positions)) == k
        assert set(draw.positions) <= set(range(1, n_docs + 1)) - {advantageous}
    assert max(map(len, steps)) <= batch
    assert steps == plan(n, n_docs, advantageous, k, epochs, batch, seed)


def test_more_positions_than_there_are_is_refused():
    with pytest.raises(PosgapError, match="k=5: only 4 of 5 positions"):
        plan(10, 5, 1, 5, 1, 4, 0)


def test_processes_share_a_step_without_rest_or_repeat():
    draws = [Draw(i, (2,)) for i in range(7)]
    shared = [draw for rank in range(3) for draw in share(draws, rank, 3)]
    assert sorted(d.pair for d in shared) == list(range(7))


def test_responses_to_other_examples_are_refused(pairs):
    with pytest.raises(PosgapError, match="1 responses answer examples that are not given, the first kv-3"):
        pair_up([p.example for p in pairs[:3]], [p.response for p in pairs])


def test_the_window_ends_with_the_response_and_begins_at_the_last_prompt_token(pairs, collate):
    batch = collate([(0, 1), (1, 4), (2, 2)])
    assert batch.window == 3
    for row, (index, position) in enumerate([(0, 1), (1, 4), (2, 2)]):
        response = pairs[index].response.token_ids
        prompt = collate.build(pairs[index].example, Placement((position,), N_DOCS))
        real = batch.attention_mask[row].bool()
        assert batch.input_ids[row][real].tolist() == prompt + response[:-1]
        assert batch.position_ids[row][real].tolist() == list(range(len(prompt) + len(response) - 1))
        # The column that predicts the first response token holds the last prompt token.
        first = batch.window - len(response)
        assert batch.input_ids[row, -batch.window :][first] == prompt[-1]
        assert batch.targets[row][batch.response_mask[row]].tolist() == response


def test_the_first_response_token_is_aligned(model, pairs, collate):
    """A student that differs in its first response token alone has a loss; off by one, it has none."""
    objective = R1(TeacherStates(model, pairs, collate, 2), 1, anchoring=1.0)
    batch = collate([(0, 1), (0, 3)])
    logits = objective.teacher.logits(batch).clone()
    _, same = objective.loss(logits, batch)
    assert same["loss"] == pytest.approx(0, abs=1e-6)
    logits[:, 0, batch.targets[0, 0]] += 3.0
    _, first = objective.loss(logits, batch)
    assert first["activation_kl"] > 0.01 and first["anchoring_kl"] > 0.01
    # By hand, from a live forward pass: the token before r_1 is the prompt's last.
    ids = collate.build(pairs[0].example, Placement((1,), N_DOCS))
    live = model(torch.tensor([ids])).logits[0, -1]
    torch.testing.assert_close(objective.teacher.logits(batch)[0, 0].double(), live, rtol=1e-4, atol=1e-5)


def test_cached_teacher_distributions_are_those_of_a_live_teacher(model, pairs, collate):
    teacher = TeacherStates(model, pairs, collate, batch_size=3)
    batch = collate([(i, 1) for i in (2, 0, 3, 1)])
    with torch.no_grad():
        live = model(**batch.model_inputs()).logits[:, -batch.window :]
    zero = response_kl(live, teacher.logits(batch), batch.response_mask)
    assert zero.abs().max() < 1e-6
    assert [len(state) for state in teacher.states] == [len(p.response.token_ids) for p in pairs]


def test_in_mixed_precision_the_student_begins_as_the_teacher(model, pairs, collate):
    model.float()
    objective = R1(TeacherStates(model, pairs, collate, 4, mixed=True), 1, 1.0)
    batch = collate([(0, 1), (1, 1), (0, 3)])
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        logits = model(**batch.model_inputs(), logits_to_keep=batch.window).logits
    assert logits.dtype == torch.bfloat16
    _, figures = objective.loss(logits, batch)
    assert figures["anchoring_kl"] < 1e-6


def test_the_teacher_stays_while_the_student_moves(model, pairs, collate):
    teacher = TeacherStates(model, pairs, collate, 4)
    batch = collate([(0, 1)])
    before = teacher.logits(batch)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    torch.testing.assert_close(teacher.logits(batch), before)


def test_the_loss_is_its_definition(model, pairs, collate):
    """L = sum alpha_ij L_ij + lambda mean_j L_Anc, from a second model's live logits."""
    torch.manual_seed(1)
    student = type(model)(model.config).double()
    objective = R1(TeacherStates(model, pairs, collate, 4), 1, anchoring=0.5)
    rows = objective.rows([Draw(0, (2, 3)), Draw(1, (3, 5)), Draw(3, (2, 4))])
    assert rows == [(0, 1), (0, 2), (0, 3), (1, 1), (1, 3), (1, 5), (3, 1), (3, 2), (3, 4)]
    batch = collate(rows)
    logits = student(**batch.model_inputs(), logits_to_keep=batch.window).logits
    loss, figures = objective.loss(logits, batch)
    kl = response_kl(objective.teacher.logits(batch), logits, batch.response_mask)
    trivial = batch.positions != 1
    alpha = alignment_weights(kl[trivial], batch.positions[trivial])
    expected = (alpha * kl[trivial]).sum() + 0.5 * kl[~trivial].mean()
    torch.testing.assert_close(loss, expected)
    assert figures["loss"] == pytest.approx(expected.item(), rel=1e-5)


def test_without_anchoring_no_anchor_prompt_is_read(model, pairs, collate):
    objective = R1(TeacherStates(model, pairs, collate, 4), 1, anchoring=0.0)
    assert objective.rows([Draw(0, (2, 3))]) == [(0, 2), (0, 3)]


def run(model, pairs, collate, epochs=10, learning_rate=1e-3):
    figures = []
    objective = R1(TeacherStates(model, pairs, collate, 4), 1, 1.0)
    steps = plan(len(pairs), N_DOCS, 1, k=4, epochs=epochs, batch_size=2, seed=0)
    train(
        model,
        steps,
        objective,
        collate,
        Optimization(learning_rate, 2, 1.0),
        Accelerator(cpu=True),
        lambda step, f: figures.append(f),
    )
    return figures


def test_training_lowers_the_loss_and_repeats_itself(model, pairs, collate):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)  # untrained, it hardly tells one prompt from another
    twin = copy.deepcopy(model)
    first, again = run(model, pairs, collate), run(twin, pairs, collate)
    assert [f["loss"] for f in first] == [f["loss"] for f in again]
    assert first[-1]["activation_kl"] < first[0]["activation_kl"] / 2
    assert len(first) == 20


def test_a_loss_that_is_not_finite_stops_before_the_update(model, pairs, collate):
    objective = R1(TeacherStates(model, pairs, collate, 4), 1, 1.0)
    with torch.no_grad():
        model.model.norm.weight.fill_(float("nan"))
    with pytest.raises(PosgapError, match="step 1: the loss is nan"):
        train(
            model,
            plan(4, N_DOCS, 1, 2, 1, 2, 0),
            objective,
            collate,
            Optimization(1e-3, 0, 1.0),
            Accelerator(cpu=True),
            lambda *_: None,
        )


def test_the_learning_rate_warms_up_and_decays_to_zero():
    optimization = Optimization(1.0, 4, 1.0)
    rates = [optimization.rate(step, 10) for step in range(11)]
    assert rates[:5] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert rates[10] == 0
    assert all(a > b for a, b in pairwise(rates[4:]))
