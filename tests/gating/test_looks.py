"""Looks at a model with ever more examples, and candidates of one run, share the error of a verdict."""

import math
import shutil
from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np
import pytest
from written_sweeps import ASKED, write_sweep

from posgap.foundation.files import digest_path, read_json
from posgap.gating.looks import attempt_number, is_counted, record_attempt
from posgap.gating.replay import replay_verdict
from posgap.gating.verdict import LATER, markdown, read_verdict, share_of_error
from posgap.measurement.statistics import LEVEL, tango_bound, upper_error
from posgap.options.gate import GateConfig
from posgap.verbs.gate import judge_and_write


def test_the_shares_add_up_to_little_more_than_a_first_look_has():
    assert share_of_error(1, 1) == 1 and share_of_error(3, 5) == pytest.approx(LATER**2 / 5)
    assert math.fsum(share_of_error(look, 1) for look in range(1, 60)) == pytest.approx(4 / 3)
    assert 10 * share_of_error(1, 10) == pytest.approx(1)


@pytest.fixture(scope="module")
def passed():
    """Whether a model of two placements whose gap is just what is allowed, 10 points, passes [runs, looks] with 100 to
    1,600 examples, by the error of each bound."""
    rng, runs, limit, sizes = np.random.default_rng(0), 4000, 0.1, [100, 150, 250, 400, 650, 1000, 1600]
    outcomes = rng.choice([1, -1, 0], p=[0.15, 0.05, 0.8], size=(runs, sizes[-1]))

    def by(errors):
        columns = []
        for size, error in zip(sizes, errors, strict=True):
            seen = outcomes[:, :size]
            more, fewer = ((seen == sign).sum(axis=1).astype(float) for sign in (1, -1))
            bounds = [tango_bound(*pair, size, upper_error(2, error)) for pair in ((more, fewer), (fewer, more))]
            columns.append(np.maximum(*bounds) <= limit)
        return np.stack(columns, axis=1)

    return by


def test_seven_looks_pass_hardly_more_often_than_one(passed):
    alone = passed([LEVEL] * 7)
    spent = passed([LEVEL * share_of_error(look, 1) for look in range(1, 8)])
    assert alone.any(axis=1).mean() > 0.075
    assert 0.015 < spent[:, 0].mean() <= spent.any(axis=1).mean() < 0.035


def test_ten_candidates_pass_hardly_more_often_than_one(passed):
    alone, shared = (passed([LEVEL * share] * 7)[:, -1].reshape(-1, 10).any(axis=1) for share in (1, 1 / 10))
    assert alone.mean() > 0.18 and 0.005 < shared.mean() < 0.05


@pytest.mark.full
def test_a_model_that_was_not_admitted_has_less_of_the_error_on_other_examples(tmp_path):
    """On the same examples it has as much as before, and what was recorded is judged again alike."""
    model, other = tmp_path / "one-model", tmp_path / "other-model"
    for folder in (model, other):
        folder.mkdir()
        (folder / "weights").write_text(folder.name)

    def judge(name, n, of=model, **options):
        unsure, before = [0.97, 0.97, 0.93, 0.97, 0.97], [1.0, 0.6, 0.3, 0.6, 0.9]
        swept = write_sweep(tmp_path / f"new-{name}", unsure, model=of, order=range(n))
        base = write_sweep(tmp_path / f"base-{name}", before, order=range(n))
        return read_verdict(judge_and_write(GateConfig(out=tmp_path / name, candidate=swept, base=base, **options)))

    one, two, again = judge("one", 190), judge("two", 200), judge("again", 190)
    assert [one.look, two.look, again.look] == [1, 2, 1] and not one.passed
    assert replay_verdict(tmp_path / "two").look == 2
    assert "Each bound may be wrong in 1.25 % instead of 5, since this is look 2 at the model." in markdown(two)
    first, ten = judge("first", 200, of=other), judge("ten", 200, of=other, candidates=10)
    assert first.look == ten.look == 1 and ten.candidates == 10
    gaps = [verdict.rules[0].interval[1] for verdict in (first, two, ten)]
    assert gaps == sorted(set(gaps))  # 5, 1.25 and 0.5 percent of error


def asked(examples="e", **more) -> SimpleNamespace:
    """What is looked at of a sweep."""
    known = {"model": "m", "model_digest": "m", "task": "kv", "metric": "em", "n_docs": 5, "placements": [[1]]}
    return SimpleNamespace(**{"asked": ASKED} | known | more, examples_digest=examples)


def judged(passed: bool = False, gaps: Sequence[str] = ()) -> SimpleNamespace:
    return SimpleNamespace(passed=passed, evidence_gaps=gaps)


def test_a_look_is_a_verdict_on_new_examples_or_by_another_question(tmp_path, monkeypatch):
    """Whatever else is changed, the same weights had their chance: 20 looks pass a model at the threshold in 43 %."""
    monkeypatch.setenv("POSGAP_CACHE", str(tmp_path))
    assert attempt_number(asked()) == 1
    for verdict in (judged(passed=True), judged(gaps=["too few"])):
        record_attempt(verdict, asked())  # which spent no error
    assert attempt_number(asked("other")) == 1 and not list(tmp_path.rglob("*.json"))
    for examples in ("one", "two", "one"):
        record_attempt(judged(), asked(examples))
    assert [attempt_number(asked(examples)) for examples in ("one", "two", "three")] == [1, 2, 3]
    system = ASKED.model_copy(update={"system": "Be brief."})
    for other in ({"task": "my-kv"}, {"n_docs": 6}, {"asked": system}, {"settings": {"backend": "openai"}}):
        assert attempt_number(asked("three", **other)) == 3
    assert attempt_number(asked("one", n_docs=6)) == 3, "of examples that were seen, another question"
    assert attempt_number(asked("three", model_digest="n")) == 1
    (file,) = (tmp_path / "looks").iterdir()
    assert len(read_json(file)) == 2


def test_a_file_beside_the_weights_makes_no_new_model(tmp_path, monkeypatch, model_folder):
    monkeypatch.setenv("POSGAP_CACHE", str(tmp_path / "cache"))
    other = shutil.copytree(model_folder, tmp_path / "other")
    (other / "README.md").write_text("A word more.")
    assert digest_path(model_folder) != digest_path(other)
    record_attempt(judged(), asked("one", model=str(model_folder), model_digest=digest_path(model_folder)))
    for _ in range(2):
        assert attempt_number(asked("two", model=str(other), model_digest=digest_path(other))) == 2
    assert attempt_number(asked("two", model=str(other), model_digest="another's")) == 1


def test_of_a_model_that_may_have_changed_no_look_is_counted(tmp_path, monkeypatch):
    monkeypatch.setenv("POSGAP_CACHE", str(tmp_path))
    of_endpoint = asked("one", model_digest="")
    record_attempt(judged(), of_endpoint)
    assert attempt_number(of_endpoint) is None and not is_counted(of_endpoint) and not list(tmp_path.iterdir())


@pytest.mark.nightly
def test_looks_at_an_endpoint_are_not_counted_and_a_note_says_what_that_needs(tmp_path):
    """Its model may have changed since: a second look has all of the error too."""
    unsure, before = [0.97, 0.97, 0.93, 0.97, 0.97], [1.0, 0.6, 0.3, 0.6, 0.9]
    needs = {}
    for backend in ("openai", "transformers"):
        for n in (190, 200):
            model = "m"
            if backend == "transformers":
                model = tmp_path / f"model-{backend}"
                model.mkdir(exist_ok=True)
                (model / "weights").write_text(backend)
            place, settings = tmp_path / f"{backend}-{n}", {"backend": backend}
            place.mkdir()
            swept = write_sweep(place / "new", unsure, model=model, order=range(n), settings=settings)
            base = write_sweep(place / "base", before, order=range(n), settings=settings)
            strict = {"mean_tolerance": 2, "advantageous_tolerance": 5}
            verdict = read_verdict(
                judge_and_write(GateConfig(out=place / "gate", candidate=swept, base=base, **strict))
            )
            assert replay_verdict(place / "gate") == verdict  # what was recorded is judged again alike
            needs[backend, n] = verdict.look, verdict.needs
    (first, one), (second, other) = needs["openai", 190], needs["openai", 200]
    assert (first, second) == (1, 1) and other == pytest.approx(one, rel=0.2)
    (first, one), (second, other) = needs["transformers", 190], needs["transformers", 200]
    assert (first, second) == (1, 2) and needs["openai", 190][1] < 0.9 * one < 0.9 * other
