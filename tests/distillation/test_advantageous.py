"""Responses at several advantageous placements in one folder, and which of them are learnt."""

from collections import Counter

import pytest
from examples import kv_example
from hypothesis import given, settings
from hypothesis import strategies as st

from posgap.data.reading import write_examples
from posgap.foundation.errors import PosgapError
from posgap.foundation.files import read_json, read_jsonl, write_jsonl
from posgap.options.distill import DistillConfig
from posgap.options.teacher import TeacherConfig
from posgap.tasks.content import content_key
from posgap.tasks.responses import Response, at_one_placement, read_responses
from posgap.verbs.distill import distill
from posgap.verbs.teacher import teacher


def response(example: int, position: int, correct: bool = True, **more) -> dict:
    said = {"placement": [position], "n_docs": 5, "response": "0", "token_ids": [25, 2], "correct": correct}
    return {"id": f"kv-{example}", "content": content_key(kv_example(example))} | said | more


def read(*rows: dict) -> list[Response]:
    return [Response(**row) for row in rows]


@pytest.fixture
def examples(tmp_path):
    write_examples(tmp_path / "e.jsonl", [kv_example(i) for i in range(6)])
    return tmp_path / "e.jsonl"


def test_a_teacher_answers_at_each_placement_as_it_would_at_that_alone(tmp_path, examples, model_folder, caplog):
    shared = {"examples": examples, "model": str(model_folder), "n_docs": 5, "max_new_tokens": 2}
    shared |= {"keep_incorrect": True}
    with caplog.at_level("INFO", logger="posgap"):
        both = teacher(TeacherConfig(**shared, advantageous="5,1", out=tmp_path / "both"))
    alone = {at: teacher(TeacherConfig(**shared, advantageous=at, out=tmp_path / at)) for at in ("5", "1")}
    apart = [row for pair in zip(*(read_responses(alone[at]) for at in ("5", "1"))) for row in pair]
    assert read_responses(both) == apart and len(apart) == 12
    summary = read_json(both / "teacher.json")
    assert summary["placements"] == [[5], [1]] and summary["examples"] == summary["examples_kept"] == 6
    assert summary["correct_at"] == [read_json(alone[at] / "teacher.json")["correct"] for at in ("5", "1")]
    assert summary["outcomes"]["answered"] == 12 == summary["kept"]
    assert "responses at positions 5 and 1 of 5 are correct" in caplog.text
    assert "6 of 6 examples have a response to learn" in caplog.messages


def test_a_teacher_of_mixed_lengths_answers_each_example_at_one_of_them(tmp_path, examples, model_folder, caplog):
    """As a teacher of that length alone would, at the same depth; and distill learns all of them in one training."""
    shared = {"examples": examples, "model": str(model_folder), "max_new_tokens": 2, "keep_incorrect": True}
    mixed = {"n_docs": 5, "mix_docs": "3,6", "advantageous": "5"}
    with caplog.at_level("INFO", logger="posgap"):
        out = teacher(TeacherConfig(**shared, **mixed, out=tmp_path / "mixed"))
    assert any("of 3, 5 or 6 documents" in line for line in caplog.messages)
    responses, alone = read_responses(out), {}
    for n_docs in (3, 5, 6):
        config = TeacherConfig(**shared, n_docs=n_docs, advantageous=str(n_docs), out=tmp_path / str(n_docs))
        alone |= {(row.id, n_docs): row for row in read_responses(teacher(config))}
    assert {row.n_docs for row in responses} > {3} or {row.n_docs for row in responses} > {5}
    assert responses == [alone[row.id, row.n_docs] for row in responses] and len(responses) == 6
    summary = read_json(out / "teacher.json")
    asked = [(n_docs, placement) for n_docs, (placement,) in zip(summary["n_docs"], summary["placements"])]
    assert asked == sorted({(row.n_docs, row.n_docs) for row in responses})
    told = {"examples": examples, "responses": out, "model": str(model_folder), "learning_rate": 1e-3, "k": 2}
    trained = distill(DistillConfig(**told, batch_size=60, epochs=2, out=tmp_path / "trained"))
    history = [row for _, row in read_jsonl(trained / "history.jsonl")]
    assert len(read_json(trained / "training_examples.json")) == 6
    assert len(history) == 2 and history[0]["activation_kl"] > 1e-6


def test_a_placement_that_is_given_twice_is_refused(tmp_path, examples, model_folder):
    config = TeacherConfig(
        examples=examples, model=str(model_folder), n_docs=5, advantageous="1,2,1", out=tmp_path / "o"
    )
    with pytest.raises(PosgapError, match="placement 1: "):
        teacher(config)


def test_what_a_teacher_at_one_placement_wrote_is_all_learnt():
    rows = read(*(response(i, 1, correct=i % 2 == 0) for i in (0, 1, 2, 2)))
    assert at_one_placement(rows, seed=0) == rows


placed = st.tuples(st.integers(0, 3), st.integers(1, 5), st.booleans())


@settings(deadline=None)
@given(st.lists(placed, min_size=1, max_size=20, unique_by=lambda row: row[:2]), st.integers(0, 5))
def test_of_each_example_a_right_response_is_learnt_whatever_the_others_are(rows, seed):
    responses = read(*(response(*row) for row in rows))
    chosen = at_one_placement(responses, seed)
    assert [row.id for row in chosen] == [r.id for r in responses if r in chosen]
    assert Counter(row.id for row in chosen) == dict.fromkeys({row.id for row in responses}, 1)
    for row in chosen:
        own = [other for other in responses if other.id == row.id]
        assert row.correct or not any(other.correct for other in own)
        assert at_one_placement(own[::-1], seed) == [row]


def test_every_placement_is_drawn_as_often_and_another_seed_draws_others():
    rows = read(*(response(i, position) for i in range(300) for position in (1, 3, 5)))
    drawn = [row.placement[0] for row in at_one_placement(rows, seed=0)]
    assert all(abs(count - 100) < 45 for count in Counter(drawn).values())  # five standard deviations are 41
    others = [row.placement[0] for row in at_one_placement(rows, seed=1)]
    assert 60 < sum(a == b for a, b in zip(drawn, others)) < 140


@pytest.fixture
def config(tmp_path, examples, model_folder):
    write_jsonl(tmp_path / "r.jsonl", [response(i, at, correct=at == 1 or i != 2) for i in range(6) for at in (1, 5)])
    return DistillConfig(
        examples=examples, responses=tmp_path / "r.jsonl", model=str(model_folder), out=tmp_path / "out",
        k=4, batch_size=60, epochs=3, learning_rate=1e-3, teacher_temperature=1,
    )  # fmt: skip


@pytest.mark.parametrize("method", ["r1", "sft"])
def test_distill_learns_each_example_from_one_of_its_placements(method, config):
    out = distill(config.model_copy(update={"method": method}))
    history = [row for _, row in read_jsonl(out / "history.jsonl")]
    if method == "r1":  # the student reads each anchor where that example's teacher read
        assert history[0]["anchoring_kl"] < 1e-6 < history[0]["activation_kl"]
    else:
        assert history[-1]["loss"] < history[0]["loss"]
    assert len(read_json(out / "training_examples.json")) == 6


def test_a_limit_counts_examples_of_which_one_response_is_learnt(config):
    out = distill(config.model_copy(update={"limit": 3, "epochs": 1}))
    assert read_json(out / "training_examples.json") == sorted(content_key(kv_example(i)) for i in range(3))
