"""Fitness: teacher forcing is generation, scores are computed once, weights mean what they say."""

import logging
import sys
from unittest import mock

import numpy as np
import pytest
import torch
from examples import kv_example
from hypothesis import given, settings
from hypothesis import strategies as st
from places import ROOT

sys.path.append(str(ROOT / "benchmarks"))
import families

from posgap.foundation.errors import Malformed
from posgap.generation.generator import Sampling, complete
from posgap.generation.transformers import TransformersGenerator
from posgap.models.layer_scaling import layer_scaling
from posgap.scaling.fitness import ForcedEvaluator, GenerationEvaluator, fitness, position_weights
from posgap.scaling.questions import SearchQuestion, one_right_response, right_response
from posgap.scaling.scores import Scores
from posgap.tasks.placements import Placement
from posgap.tasks.prompts import Prompt, PromptBuilder
from posgap.tasks.registry import TASKS

CANDIDATES = [(1.0, 1.0), (1.5, 1.0), (1.0, 2.0), (1.7, 1.3)]
PROMPTS = [[1, 4, 5, 9 + i, 10 + i % 7, 30] + [8, 12, 13] * (i % 4) for i in range(10)]


@pytest.fixture
def model(model):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)  # untrained, it answers every prompt alike
    return model


@pytest.mark.parametrize(
    ("family", "batch_tokens"), [("", 20), ("", 10_000), ("deepseek_v2", 10_000), ("qwen3_5_text", 10_000)]
)
def test_teacher_forcing_is_greedy_generation_of_exactly_those_tokens(model, tokenizer, family, batch_tokens):
    """Of every candidate's own generations, and of those with one token changed, at every length; also where tables are
    complex (DeepSeek-V2), and where positions are of three kinds (Qwen3.5)."""
    if family:
        sizes = {"num_hidden_layers": 2, "vocab_size": 41, "head_dim": 16}
        model = families.build_family(family, **sizes, layer_types=["full_attention"] * 2)
    generator, scaling = TransformersGenerator(model, tokenizer, 1000), layer_scaling(model)
    generated = {}
    for candidate in CANDIDATES:
        scaling.set(candidate)
        generated[candidate] = [c.token_ids for c in complete(generator, [Prompt("", p) for p in PROMPTS], Sampling(5))]
    responses = []
    for i in range(len(PROMPTS)):
        response = list(generated[CANDIDATES[i % 4]][i][: 1 + i % 5])
        if i % 3 == 0:
            response[-1] = (response[-1] + 1) % 41
        responses.append(response)
    expected = [[generated[c][i][: len(r)] == r for i, r in enumerate(responses)] for c in CANDIDATES]
    assert 0 < np.mean(expected) < 1 and len(set(map(tuple, expected))) == 4
    questions = [
        [SearchQuestion(p, r) for p, r in zip(PROMPTS[e : e + 2], responses[e : e + 2])] for e in range(0, 10, 2)
    ]
    evaluator = ForcedEvaluator(model, questions, tokenizer.pad_token_id, batch_tokens)
    correct = evaluator.correct(CANDIDATES)
    assert correct.shape == (4, 5, 2) and correct.reshape(4, 10).tolist() == expected
    assert evaluator.forward_passes == 40
    np.testing.assert_array_equal(evaluator.correct(CANDIDATES[1:2]), correct[1:2])


def test_what_questions_begin_with_alike_is_read_once_and_changes_no_answer(model, tokenizer):
    """Also where one prompt begins another, or is asked twice, and where responses differ in length."""
    start = [1, 4, 5, 9, 10, 30, 8, 12]
    prompts = [start, start[:4], [*start, 11, 13], start, [*start, 11, 14, 15], [7, 8]]
    generator = TransformersGenerator(model, tokenizer, 1000)
    own = [c.token_ids for c in complete(generator, [Prompt("", p) for p in prompts], Sampling(4))]
    responses = [own[0], own[1][:1], own[2][:2], own[3][:3], [*own[4][:-1], 40], own[5]]
    rows = [[SearchQuestion(p, r) for p, r in zip(prompts, responses)], [SearchQuestion(p, own[0]) for p in prompts]]
    answers = {}
    for reuse in (True, False):
        evaluator = ForcedEvaluator(model, rows, tokenizer.pad_token_id, 1000)
        evaluator.reuse = reuse
        with mock.patch.object(model, "forward", wraps=model.forward) as forward:
            correct = evaluator.correct(CANDIDATES)
        answers[reuse] = correct, sum(call.kwargs["input_ids"].numel() for call in forward.call_args_list)
    assert answers[True][0][0, 0].tolist() == [True, True, True, True, False, True]
    np.testing.assert_array_equal(answers[True][0], answers[False][0])
    assert answers[True][1] < 0.8 * answers[False][1]


def test_the_right_response_ends_with_its_answer_or_whole_with_the_end_token(tokenizer):
    builder, placement = PromptBuilder(TASKS["kv"], tokenizer, 512, 4), Placement((2,), 4)
    example = kv_example(3)
    (value,) = right_response(builder, example, placement, "contains_any")
    assert tokenizer.decode([value]).strip() == example.value
    assert right_response(builder, example, placement, "em") == [value, tokenizer.eos_token_id]
    for metric in ("sub_em", "litm"):
        assert right_response(builder, example, placement, metric) == [value]
    of_base = PromptBuilder(TASKS["kv"], tokenizer, 512, 4).with_attributes(stop=("\n",))  # goes on in another line
    assert right_response(of_base, example, placement, "em") == [value]
    two_answers = example.model_copy(update={"answers": ["d", "e"]})
    assert one_right_response(builder, [example], "em")
    for asked, metric in ((two_answers, "em"), (example, "f1"), (example, "numeric"), (example, "regex")):
        assert not one_right_response(builder, [asked], metric)


def test_middle_weights_are_twice_the_ends_and_fitness_is_what_its_name_says():
    weights = position_weights([1, 3, 5], 5)
    np.testing.assert_allclose(weights, [0.25, 0.5, 0.25])
    np.testing.assert_allclose(position_weights([1], 1), 1)
    accuracy = np.array([100.0, 40.0, 80.0])
    assert fitness(accuracy, weights, "mean") == pytest.approx(65)
    assert fitness(accuracy, weights, "worst") == 40
    assert fitness(accuracy, weights, "uniform") == pytest.approx(220 / 3)


class Table:
    """An evaluator that reads answers off a table, and notes what it was asked."""

    def __init__(self, n_examples: int, candidates, seed: int = 0):
        rng = np.random.default_rng(seed)
        self.questions, self.forward_passes = [[None] * 3] * n_examples, 0
        self.truth = {c: rng.random((n_examples, 3)) < rng.random() for c in candidates}
        self.asked = []

    def correct(self, candidates):
        self.asked += candidates
        self.forward_passes += 3 * len(candidates) * len(self.questions)
        return np.stack([self.truth[c] for c in candidates])


names = [(1.0, 1 + i / 100) for i in range(12)]
generations = st.lists(st.lists(st.sampled_from(names), min_size=1, max_size=8), min_size=1, max_size=4)


@settings(deadline=None)
@given(generations, st.integers(1, 13), st.integers(0, 99))
def test_nothing_is_asked_twice_and_each_has_its_fitness(populations, n_examples, seed):
    table = Table(n_examples, names, seed)
    scores = Scores(table, np.mean)
    for candidates in populations:
        assert scores(candidates) == pytest.approx([100 * table.truth[c].mean() for c in candidates])
    assert len(table.asked) == len(set(table.asked))


def test_an_interrupted_search_goes_on_where_it_stopped(tmp_path):
    first = Table(9, names)
    before = Scores(first, np.mean, tmp_path / "state.json", "this search")
    expected = [before(names[:6]), before(names[3:])]
    again = Table(9, names)
    scores = Scores(again, np.mean, tmp_path / "state.json", "this search")
    assert [scores(names[:6]), scores(names[3:])] == expected
    assert again.asked == [] and again.forward_passes == first.forward_passes
    other = Scores(again, np.mean, tmp_path / "state.json", "another search")
    other(names[:1])
    assert again.asked


def test_a_broken_state_file_is_named(tmp_path):
    (tmp_path / "state.json").write_text("[]")
    with pytest.raises(Malformed, match=r"state.json"):
        Scores(Table(3, names), np.mean, state=tmp_path / "state.json")


@pytest.mark.parametrize("forced", [True, False])
def test_progress_counts_candidates(model, tokenizer, caplog, forced):
    """Not the batches or examples of one candidate after another, which do not say how long it takes."""
    caplog.set_level(logging.INFO, logger="posgap")
    questions = [[SearchQuestion(prompt, [7, 8], ["a"])] for prompt in PROMPTS]
    if forced:
        ForcedEvaluator(model, questions, tokenizer.pad_token_id, 60).correct(CANDIDATES)
    else:
        generator = TransformersGenerator(model, tokenizer, 60)
        GenerationEvaluator(generator, questions, lambda *_: 0.0, Sampling(2)).correct(CANDIDATES)
    (line,) = caplog.messages
    assert line.startswith("scaling candidates: 4 of 4 in ")
