"""The in-context task and the stacks of attention-only networks."""

import dataclasses
import math
from typing import get_args

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from rollout_networks import SMALL, TINY, trials

from posgap.foundation.files import read_json
from posgap.options.rollout_experiment import RolloutExperimentConfig
from posgap.rollout import trials as experiment
from posgap.rollout.experiment_summary import experiment_text, gap_table, sink_table
from posgap.rollout.in_context import PAIRS, InContextTask, TaskSizes, distinct
from posgap.rollout.networks import Design, NetworkStack
from posgap.rollout.trials import PRESETS, Training, Trial, nulls, run_trials, train_networks
from posgap.verbs.rollout_experiment import rollout_experiment


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def class_of(items: torch.Tensor, means: torch.Tensor) -> torch.Tensor:
    return torch.cdist(items, means).argmin(-1)


@given(st.integers(1, 8), st.integers(0, 99))
def test_distinct_draws_are_distinct_and_within_bounds(count, seed):
    drawn = distinct(50, count, 8, rng(seed))
    assert drawn.min() >= 0 and drawn.max() < 8
    assert all(len(set(row)) == count for row in drawn.tolist())


def test_distinct_draws_are_even_over_ordered_pairs():
    drawn = distinct(60_000, 2, 4, rng())
    counts = torch.bincount(4 * drawn[:, 0] + drawn[:, 1], minlength=16).double()
    assert counts[[0, 5, 10, 15]].sum() == 0
    assert (counts[counts > 0] / 5000 - 1).abs().max() < 0.07


def test_training_sequences_are_the_paper_s():
    # Without noise an item is its class's mean, so that classes can be read off it.
    sizes = TaskSizes(size=16, classes=40, labels=12, spread=0.0)
    task = InContextTask(sizes, rng())
    inputs, answers = task.training(500, rng(1))
    assert inputs.shape == (500, 17, 16)
    classes = class_of(inputs[:, ::2], task.means)
    assert all(sorted(row.bincount()[row.unique()].tolist()) == [4, 4] for row in classes[:, :8])
    assert torch.equal(task.label_vectors[task.labels[classes[:, :8]]], inputs[:, 1::2])
    assert torch.equal(task.labels[classes[:, 8]], answers)
    assert ((classes[:, 8:] == classes[:, :8]).any(1)).all()
    unbiased = class_of(task.training(4000, rng(2))[0][:, ::2], task.means)
    matches = (unbiased[:, :8] == unbiased[:, 8:]).double().mean(0)
    assert (matches - 0.5).abs().max() < 0.04


def test_components_have_variance_1_over_d():
    task = InContextTask(TaskSizes(), rng())
    items = task.training(64, rng(1))[0][:, ::2]
    assert float(items.std()) == pytest.approx(1 / 8, rel=0.03)
    assert float(task.label_vectors.std()) == pytest.approx(1 / 8, rel=0.05)
    assert TaskSizes().place("middle") == 3


@pytest.mark.parametrize("pair", PAIRS)
def test_test_sequences_exchange_what_is_right_between_equal_vectors(pair):
    sizes = TaskSizes(size=16, labels=12, spread=0.0)
    task = InContextTask(sizes, rng())
    inputs, answers = task.novel(300, rng(1), pair)
    a, b = map(sizes.place, pair)
    assert torch.equal(inputs[:, 2 * a], inputs[:, 2 * b])
    torch.testing.assert_close(inputs[:, 2 * a], inputs[:, -1])
    labels = class_of(inputs[:, 1::2], task.label_vectors)
    assert torch.equal(labels[:, a], answers) and (labels[:, b] != answers).all()
    assert ((labels == answers[:, None]).sum(1) == 4).all()
    assert class_of(inputs[:, :1], task.means).unique().numel() > 1
    assert not torch.isclose(inputs[0, 0], task.means).all(1).any()


def plain(net: NetworkStack, run: int, design: Design, x: torch.Tensor) -> torch.Tensor:
    """One network of the stack by the paper's formulas, token by token."""
    tokens, size = x.shape[1:]
    for maps in net.maps:
        query, key, value = (x @ w for w in maps[run])
        out = torch.zeros_like(x)
        for i in range(tokens):
            seen = {
                "causal": range(i + 1),
                "window": range(max(0, i - design.width + 1), i + 1),
                "prefix": range(max(i + 1, design.prefix)),
            }[design.mask]
            scores = []
            for j in seen:
                q, k = query[:, i], key[:, j]
                scores.append((q * k).sum(1) / math.sqrt(size) - design.slope * abs(i - j))
            weights = torch.stack(scores, 1).softmax(1)
            out[:, i] = torch.einsum("bj,bjd->bd", weights, value[:, list(seen)])
        x = x + out
    h = x[:, -1]
    for weight, bias in list(zip(net.weights, net.biases))[:-1]:
        h = F.relu(h @ weight[run] + bias[run])
    return h @ net.weights[-1][run] + net.biases[-1][run]


DESIGNS = [
    Design(2),
    Design(2, slope=0.5),
    Design(2, "window", width=5),
    Design(2, "prefix", prefix=4),
]


def test_a_stack_is_its_networks_one_by_one():
    stack = NetworkStack(DESIGNS, 9, 8, 5, [rng(i) for i in range(4)])
    inputs = torch.randn(4, 3, 9, 8, generator=rng(9))
    logits, seen = stack(inputs), []
    assert torch.allclose(stack(inputs, seen), logits, atol=1e-5) and len(seen) == 2
    for run, design in enumerate(DESIGNS):
        torch.testing.assert_close(logits[run], plain(stack, run, design, inputs[run].clone()), rtol=1e-4, atol=1e-5)
        alone = NetworkStack([design], 9, 8, 5, [rng(run)])
        torch.testing.assert_close(alone(inputs[run : run + 1])[0], logits[run], rtol=1e-5, atol=1e-6)


def test_trials_do_not_depend_on_what_runs_beside_them(tmp_path, monkeypatch):
    together = run_trials(trials(), TINY, tmp_path / "together")
    monkeypatch.setattr("posgap.rollout.trials.SIDE_BY_SIDE", 1)
    alone = run_trials(trials(), TINY, tmp_path / "alone")
    for a, b in zip(together, alone):
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-4)
        assert a["accuracy"]["any"] == pytest.approx(b["accuracy"]["any"], abs=5)


def test_an_interrupted_run_goes_on_behind_the_trials_that_are_finished(tmp_path, monkeypatch):
    whole = run_trials(trials(), TINY, tmp_path / "whole")
    begun = []

    def stopping(items, total, what):
        begun.append(what)
        if len(begun) == 2:
            raise KeyboardInterrupt
        yield from items

    monkeypatch.setattr("posgap.rollout.trials.track", stopping)
    with pytest.raises(KeyboardInterrupt):
        run_trials(trials(), TINY, tmp_path / "parts")
    assert len(list((tmp_path / "parts").glob("*.json"))) == 2
    assert run_trials(trials(), TINY, tmp_path / "parts") == whole
    assert begun == ["2 networks of depth 2", *["1 networks of depth 1"] * 2]


def test_sinks_are_the_metric_of_appendix_k_4():
    """Over the maps of one sequence, so that the mean is the sequence's own."""
    stack = [Trial(Design(2, "window", width=4), SMALL, 3)]
    net, (task,), losses = train_networks(stack, Training(iterations=2, batch=4))
    (result,) = experiment.test_networks(stack, net, [task], losses, tests=1)
    maps = []
    with torch.no_grad():
        net(task.novel(1, rng(4 * 1_000_003))[0][None], maps)
    attention = torch.stack(maps)[:, 0, 0]
    assert attention.shape == (2, 17, 17)
    torch.testing.assert_close(attention.sum(-1), torch.ones(2, 17))
    i, j = torch.arange(17)[:, None], torch.arange(17)
    allowed = (j <= i) & (i - j < 4)
    assert (attention[:, ~allowed] == 0).all()
    expected = ((attention > 0.2).double().sum(1) / allowed.sum(0)).mean(0)
    torch.testing.assert_close(torch.tensor(result["sinks"]), expected.float())


def test_presets_are_of_a_task_that_networks_learn():
    assert get_args(RolloutExperimentConfig.model_fields["preset"].annotation) == tuple(PRESETS)
    for preset in PRESETS.values():
        assert (preset.sizes.burstiness, preset.sizes.spread, preset.training.iterations) == (2, 0.1, 3000)
    assert {(d.depth, d.width, d.prefix) for d in PRESETS["learned"].designs.values()} == {
        (2, 0, 0), (3, 0, 0), (2, 9, 0), (2, 0, 4),
    }  # fmt: skip
    assert PRESETS["quick"].designs.items() < PRESETS["learned"].designs.items()


@pytest.mark.usefixtures("pictures")
@pytest.mark.parametrize("name", PRESETS)
def test_stage_writes_figures_and_data(tmp_path, name, monkeypatch):
    preset = dataclasses.replace(PRESETS[name], seeds=1, training=TINY)
    monkeypatch.setitem(PRESETS, name, preset)
    out = rollout_experiment(RolloutExperimentConfig(preset=name, out=tmp_path / name, iterations=2))
    written = read_json(out / "experiment.json")
    assert len(written["trials"]) == len(preset.designs) and len(written["means"]) == len(preset.designs)
    assert (out / "experiment.png").stat().st_size > 10_000
    rows = (out / "experiment.md").read_text().splitlines()
    masks = {(design.mask, design.width, design.prefix) for design in preset.designs.values()}
    assert len(rows) == 2 * len(preset.designs) + 7 + len(masks)
    assert len({len(row) for row in rows[2 : len(preset.designs) + 4]}) == 1


def test_the_summary_names_the_greatest_bias_and_the_strongest_sink():
    def cell(name: str, gap: float, sink: float, uniform: float, right: float) -> dict:
        values = {"first,middle": gap, "first,last": 1.0, "middle,last": 2.0}
        gaps = {pair: {"mean": mean, "sd": 0.5} for pair, mean in values.items()}
        nulls = {"uniform_sinks": [0.05, uniform], "chance": 50.0}
        return {"name": name, "gaps": gaps, "sinks": [0.1, sink], "accuracy": {"any": right}} | nulls

    summary = [cell("a", -20.0, 0.3, 0.29, 54.0), cell("b", 10.0, 0.25, 0.15, 56.0)]
    assert experiment_text(summary) == (
        "The greatest bias is in a: the middle item over the first by 20.0 points. The strongest attention "
        "sink beyond uniform attention is token 2 of b (0.25, uniform 0.15). 1 of 2 settings answer clearly above "
        "chance, which is naming any label of the sequence: the others did not learn to match items, "
        "so their gaps and sinks mean little"
    )
    assert experiment_text(summary[1:]).endswith(
        "1 of 1 settings answer clearly above chance, which is naming any label of the sequence"
    )
    row = " ".join(gap_table(summary).splitlines()[2].split())
    assert row == "| a | -20.0 ± 0.5 | +1.0 ± 0.5 | +2.0 ± 0.5 | 54.0 | 50.0 |"
    assert [" ".join(line.split()) for line in sink_table(summary).splitlines()[2:]] == [
        "| a | 0.10 | 0.30 |", "| uniform attention | 0.05 | 0.29 |",
        "| b | 0.10 | 0.25 |", "| uniform attention | 0.05 | 0.15 |",
    ]  # fmt: skip
    alike = [cell("a", 1.0, 0.3, 0.2, 50.0), cell("b", 2.0, 0.3, 0.2, 50.0)]
    assert sink_table(alike).count("uniform attention") == 1 and ". 0 of 2 settings answer" in experiment_text(alike)


def test_the_nulls_are_a_copier_s_accuracy_and_uniform_attention_s_sinks():
    """Token j's sink is the share, of the queries that see it, of those that see fewer than five tokens."""
    causal = nulls(Trial(Design(2), SMALL, 0))
    assert causal["chance"] == 100 * SMALL.burstiness / SMALL.items
    assert causal["uniform_sinks"] == pytest.approx([4 / 17, 3 / 16, 2 / 15, 1 / 14] + [0] * 13)
    assert nulls(Trial(Design(2, "window", width=4), SMALL, 0))["uniform_sinks"] == pytest.approx([1] * 17)
    window = nulls(Trial(Design(2, "window", width=5), SMALL, 0))
    assert window["uniform_sinks"] == pytest.approx([4 / 5, 3 / 5, 2 / 5, 1 / 5] + [0] * 13)
