"""The methods as rules for which prompts are read and how much each loss weighs."""

import math

import pytest
import torch
from by_definition import alpha_by_definition
from examples import answered
from hypothesis import given, settings
from hypothesis import strategies as st

from posgap.distillation.batches import Draw, TrainingPrompt
from posgap.distillation.objectives import R1, CrossEntropy, effective_rows

ALIGNMENTS = ["paper", "none"]
AT_FIRST = [(1,)] * 30  # where the responses of as many pairs were sampled
DRAWS = [Draw(0, ((2,), (3,))), Draw(1, ((3,), (5,))), Draw(3, ((2,), (4,)))]


def test_r1_reads_each_pair_where_it_is_best_and_where_it_was_drawn():
    rows = R1(AT_FIRST, "paper", anchoring=0.5).draw_prompts(DRAWS)
    assert [(row.pair, *row.positions) for row in rows] == [
        (0, 1), (0, 2), (0, 3), (1, 1), (1, 3), (1, 5), (3, 1), (3, 2), (3, 4)
    ]  # fmt: skip


def test_each_pair_has_its_anchor_where_its_own_response_was_sampled():
    """What is an anchor of one pair is a trivial placement of another."""
    objective = R1([(1,), (3,)], "paper", 1.0)
    rows = objective.draw_prompts([Draw(0, ((2,), (3,))), Draw(1, ((1,), (2,)))])
    assert [(row.pair, *row.positions) for row in rows] == [(0, 1), (0, 2), (0, 3), (1, 3), (1, 1), (1, 2)]
    assert objective.weight_groups(rows) == [None, (2,), (3,), None, (1,), (2,)]
    weights = objective.weights(rows, torch.tensor([0.1, 1.0, 1.0, 0.2, 1.0, 1.0]))
    assert weights.tolist() == pytest.approx([1 / 2, 1 / 3, 1 / 3, 1 / 2, 1 / 3, 1 / 3])


def test_without_anchoring_no_anchor_prompt_is_read():
    assert R1(AT_FIRST, "none", anchoring=0.0).draw_prompts(DRAWS[:1]) == [
        TrainingPrompt(0, (2,)),
        TrainingPrompt(0, (3,)),
    ]


def test_without_anchoring_the_teacher_s_place_weighs_like_any_other():
    objective = R1(AT_FIRST, "none", anchoring=0.0)
    rows = objective.draw_prompts([Draw(0, ((1,), (2,))), Draw(1, ((3,), (5,)))])
    losses = torch.tensor([1.0, 2.0, 3.0, 4.0])
    assert objective.weights(rows, losses).tolist() == [0.25] * 4
    assert objective.step_figures(rows, losses).keys() == {"activation_kl", "effective_rows", "alignment_sum"}


def test_alignment_compares_mixed_lengths_by_depth():
    """Position 9 of 17 is position 3 of 5, and position 17 is position 5."""
    objective = R1([(1,)] * 2, "paper", 1.0, n_docs=[5, 17])
    rows = [TrainingPrompt(0, (3,)), TrainingPrompt(1, (9,)), TrainingPrompt(1, (17,)), TrainingPrompt(1, (1,))]
    losses = torch.tensor([1.0, 3.0, 2.0, 9.0], dtype=torch.float64)
    assert objective.weight_groups(rows) == [(3,), (3,), (5,), None]
    alike = R1([(1,)] * 2, "paper", 1.0).weights(
        [rows[0], TrainingPrompt(1, (3,)), TrainingPrompt(1, (5,)), rows[3]], losses
    )
    assert objective.weights(rows, losses).tolist() == alike.tolist()


placed = st.tuples(st.integers(1, 6), st.floats(0.0625, 20, width=32))


@settings(deadline=None)
@given(
    st.lists(placed, min_size=1, max_size=24),
    st.floats(0.1, 3),
    st.sampled_from(ALIGNMENTS),
)
def test_r1_s_weights_are_their_definition(placed, anchoring, alignment):
    """alpha over the trivial placements, lambda / J over the anchors, wherever the rows stand in the batch."""
    rows = [TrainingPrompt(i, (position,)) for i, (position, _) in enumerate(placed)]
    losses = torch.tensor([loss for _, loss in placed], dtype=torch.float64)
    trivial = [i for i, row in enumerate(rows) if row.positions != (4,)]
    expected = [anchoring / (len(rows) - len(trivial))] * len(rows) if len(trivial) < len(rows) else [0.0] * len(rows)
    of_trivial = [losses[i].item() for i in trivial]
    alpha = [1 / len(trivial) for _ in trivial]
    if alignment == "paper":
        alpha = alpha_by_definition(of_trivial, [placed[i][0] for i in trivial])
    for i, weight in zip(trivial, alpha):
        expected[i] = weight
    found = R1([(4,)] * len(rows), alignment, anchoring).weights(rows, losses)
    assert found.dtype == losses.dtype and found.tolist() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("alignment", ALIGNMENTS)
def test_a_method_says_whether_its_weights_need_the_losses(alignment):
    objective = R1(AT_FIRST, alignment, 1.0)
    rows = objective.draw_prompts(DRAWS)
    some, others = torch.linspace(1, 2, len(rows)), torch.linspace(3, 1, len(rows))
    same = torch.equal(objective.weights(rows, some), objective.weights(rows, others))
    assert any(objective.weight_groups(rows)) == (not same)
    plain = CrossEntropy(answered())
    rows = plain.draw_prompts(DRAWS)
    some, others = some[: len(rows)], others[: len(rows)]
    assert torch.equal(plain.weights(rows, some), plain.weights(rows, others)) and not any(plain.weight_groups(rows))


def test_r1_s_loss_of_a_token_is_the_kl_from_the_teacher_to_the_student():
    teacher, student, targets = torch.tensor([[0.5, 0.5]]).log(), torch.tensor([[0.9, 0.1]]).log(), torch.tensor([0])
    loss = R1(AT_FIRST, "none", 1.0).token_losses(student, targets, teacher)
    assert loss.tolist() == pytest.approx([0.5 * math.log(0.5 / 0.9) + 0.5 * math.log(0.5 / 0.1)])


def test_cross_entropy_needs_no_teacher():
    logits = torch.tensor([[0.9, 0.1], [0.3, 0.7]]).log()
    losses = CrossEntropy([]).token_losses(logits, torch.tensor([0, 0]), None)
    assert losses.tolist() == pytest.approx([-math.log(0.9), -math.log(0.3)])


@pytest.mark.parametrize("objective", [R1([(2,)] * 3, "paper", 1.0), CrossEntropy(answered())])
def test_weights_are_made_where_the_losses_are(objective):
    """Where tensors that name no device would land on another one."""
    rows = [TrainingPrompt(0, (1,)), TrainingPrompt(1, (2,)), TrainingPrompt(2, (1,))]
    losses = torch.tensor([1.0, 2.0, 3.0], device="cpu")
    expected, figures = objective.weights(rows, losses), objective.step_figures(rows, losses)
    with torch.device("meta"):
        assert torch.equal(objective.weights(rows, losses), expected)
        assert objective.step_figures(rows, losses) == figures


def test_two_gold_documents_have_placements_of_two_positions():
    objective = R1([(4, 5)], "paper", 1.0)
    rows = objective.draw_prompts([Draw(0, ((1, 2), (2, 1)))])
    assert [row.positions for row in rows] == [(4, 5), (1, 2), (2, 1)]
    weights = objective.weights(rows, torch.tensor([0.1, 1.0, 1.0]))
    assert weights.tolist() == pytest.approx([1.0, 0.5, 0.5])


def test_r1_s_figures_are_the_mean_losses_of_anchors_and_of_the_others():
    objective = R1(AT_FIRST, "none", 0.5)
    equal = {"effective_rows": 4.0, "alignment_sum": 1.0}
    rows, losses = objective.draw_prompts(DRAWS[:2]), torch.tensor([0.25, 1.0, 2.0, 0.75, 4.0, 5.0])
    assert objective.step_figures(rows, losses) == {"activation_kl": 3.0, "anchoring_kl": 0.5, **equal}
    without = R1(AT_FIRST, "none", 0.0)
    figures = without.step_figures(without.draw_prompts(DRAWS[:1]), torch.tensor([1.0, 3.0]))
    assert figures == {"activation_kl": 2.0, **equal, "effective_rows": 2.0}


@pytest.mark.parametrize("size, least, most", [(1e-3, 3.6, 4.0), (10.0, 1.0, 1.1)])
def test_alignment_tells_prompts_apart_only_where_divergences_are_nats(size, least, most):
    """At the paper's small divergences all placements weigh about alike; at several nats one prompt has it all."""
    objective = R1(AT_FIRST, "paper", 1.0)
    rows = objective.draw_prompts([Draw(0, ((2,), (3,), (4,), (5,)))])
    losses = size * torch.tensor([0.0, 1.0, 1.5, 2.0, 3.0])
    figures, weights = objective.step_figures(rows, losses), objective.weights(rows, losses)[1:]
    assert least < figures["effective_rows"] <= most
    assert figures["effective_rows"] == pytest.approx(float(weights.sum() ** 2 / (weights**2).sum()))
    assert figures["alignment_sum"] == pytest.approx(float(weights.sum())) == pytest.approx(1.0)
    line = objective.summarize_weights([{"effective_rows": 3.0}, figures, figures])
    assert f"{figures['effective_rows']:.1f} effective prompts in the median step" in line
    assert ("one prompt has nearly all the weight" in line) == (size > 1)
    assert not objective.summarize_weights([{"loss": 1.0}]) and not R1(AT_FIRST, "none", 1.0).summarize_weights(
        [figures]
    )


def test_weights_that_are_all_zero_count_no_row():
    assert effective_rows(torch.zeros(3)) == 0.0


def test_cross_entropy_weighs_every_token_of_the_step_alike():
    objective = CrossEntropy(answered(lengths=(2, 3, 1, 4)))
    rows = objective.draw_prompts(DRAWS)
    assert [(row.pair, *row.positions) for row in rows] == [(0, 2), (0, 3), (1, 3), (1, 5), (3, 2), (3, 4)]
    losses = torch.tensor([2.0, 4.0, 3.0, 0.0, 8.0, 1.0])  # sums over each row's 2, 2, 3, 3, 4 and 4 tokens
    assert objective.weights(rows, losses).tolist() == pytest.approx([1 / 18] * 6)
    assert objective.step_figures(rows, losses) == {"cross_entropy": 1.0}
