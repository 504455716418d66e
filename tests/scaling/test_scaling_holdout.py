"""What a search gains on the examples that chose its factors, and on held-out examples."""

import logging
import zlib
from functools import partial

import numpy as np
import pytest
from examples import kv_example

from posgap.data.reading import write_examples
from posgap.foundation.files import read_json, write_json
from posgap.options.scale_search import ScaleSearchConfig
from posgap.scaling.fitness import GenerationEvaluator, fitness, position_weights
from posgap.scaling.holdout import MIN_EXAMPLES, hold_out, measure_gain
from posgap.scaling.scaling_file import read_scaling
from posgap.tasks.content import content_keys
from posgap.verbs.scale_search import scale_search

EXAMPLES = [kv_example(i) for i in range(48)]


def test_a_share_of_examples_is_kept_from_the_search_by_content_alone():
    searched, aside = hold_out(EXAMPLES)
    assert len(aside) == 12 and sorted(content_keys([*searched, *aside])) == sorted(content_keys(EXAMPLES))
    assert searched == [each for each in EXAMPLES if each in searched]
    renamed = [each.model_copy(update={"id": f"other-{each.id}"}) for each in reversed(EXAMPLES)]
    assert set(content_keys(hold_out(renamed)[1])) == set(content_keys(aside))
    both = hold_out([*EXAMPLES, *renamed])
    assert set(content_keys(both[1])) == set(content_keys(aside)) and not set(content_keys(both[0])) & set(
        content_keys(aside)
    )
    assert len(hold_out(EXAMPLES[: 4 * MIN_EXAMPLES])[1]) == MIN_EXAMPLES
    assert hold_out(EXAMPLES[: 4 * MIN_EXAMPLES - 1]) == (EXAMPLES[: 4 * MIN_EXAMPLES - 1], [])


@pytest.mark.parametrize("objective", ["mean", "uniform", "worst"])
def test_the_best_of_noise_gains_where_it_was_chosen_and_nothing_elsewhere(objective):
    of = partial(fitness, weights=position_weights([1, 2, 3], 3), objective=objective)
    won, held_out, covered, real = [], [], 0, 0
    for seed in range(12):
        rng = np.random.default_rng(seed)
        chosen_by, others = rng.integers(0, 2, (2, 30, 60, 3))  # [C, E, P] of 30 candidates that differ by chance
        best = max(range(30), key=lambda i: of(100 * chosen_by[i].mean(axis=0)))
        won.append(measure_gain(chosen_by[best], chosen_by[0], of, seed)[0])
        value, (low, high) = measure_gain(others[best], others[0], of, seed)
        assert low <= value <= high
        assert value == pytest.approx(of(100 * others[best].mean(axis=0)) - of(100 * others[0].mean(axis=0)))
        held_out.append(value)
        covered += low <= 0 <= high
        better = np.maximum(others[0], rng.random((60, 3)) < 0.5)  # half of what was wrong comes right
        real += measure_gain(better, others[0], of, seed)[1][0] > 0
    assert min(won) >= 0 and np.mean(won) > 5 and abs(np.mean(held_out)) < 5
    assert covered >= 10 and real == 12


@pytest.fixture
def searched(tmp_path, model_folder, monkeypatch):
    """A search in which a candidate answers as it is told: `right(factors, rng)` is whether, at four positions."""

    def run(right, examples=EXAMPLES, **more):
        def correct(self, candidates):
            rows = np.empty((len(candidates), len(self.questions), len(self.questions[0])), dtype=bool)
            for c, factors in enumerate(candidates):
                for e, questions in enumerate(self.questions):
                    asked = repr((factors, questions[0].prompt)).encode()
                    rows[c, e] = right(factors, np.random.default_rng(zlib.crc32(asked)))[: len(questions)]
            self.forward_passes += rows.size
            return rows

        monkeypatch.setattr("posgap.scaling.search.one_right_response", lambda *_: False)
        monkeypatch.setattr(GenerationEvaluator, "correct", correct)
        write_examples(tmp_path / "examples.jsonl", examples)
        config = ScaleSearchConfig(
            examples=tmp_path / "examples.jsonl",
            model=str(model_folder),
            out=tmp_path / "scaling",
            n_docs=4,
            max_new_tokens=1,
            population=10,
            generations=3,
        )
        return read_scaling(scale_search(config.model_copy(update=more)))

    return run


def test_the_file_tells_what_was_chosen_from_what_it_gains(searched, tmp_path, caplog):
    caplog.set_level(logging.INFO, "posgap")
    noise = searched(lambda factors, rng: rng.random(4) < 0.5)
    assert noise.search_gain == noise.fitness - noise.unscaled_fitness > 0
    assert noise.gain_ci95[0] <= 0 <= noise.gain_ci95[1]
    assert noise.holdout.examples == 12 and len(noise.example_contents) == 36
    assert not set(noise.holdout.contents) & set(noise.example_contents)
    assert noise.forward_passes <= (1 + 3 * 10) * 36 * 4
    assert "on the 12 kept aside, so it may be nothing" in caplog.text
    weights = position_weights([1, 2, 3, 4], 4)
    assert noise.gain == pytest.approx(
        weights @ np.array(noise.holdout.accuracy) - weights @ np.array(noise.holdout.unscaled_accuracy)
    )
    real = searched(lambda factors, rng: rng.random(4) < np.mean(factors) - 0.8, force=True)
    assert real.gain_ci95[0] > 0 and "so it may be nothing" not in real.gain_in_words


def test_too_few_examples_are_all_searched_on_and_a_line_says_so(searched, tmp_path, caplog):
    caplog.set_level(logging.INFO, "posgap")
    few = searched(lambda factors, rng: rng.random(4) < 0.5, EXAMPLES[:12])
    assert len(few.example_contents) == 12 and few.search_gain > 0 and few.gain is few.gain_ci95 is few.holdout is None
    assert "12 examples are too few: 0.25 of them held out must be 8 or more" in caplog.text

    file = tmp_path / "scaling" / "scaling.json"  # as an older posgap wrote it
    new = ("search_gain", "gain", "gain_ci95", "holdout")
    write_json(file, {name: value for name, value in read_json(file).items() if name not in new})
    older = read_scaling(tmp_path / "scaling")
    assert older.search_gain is None and older.gain is None
