"""`mitigate` on a retrieval log: what it gains over the retriever's own order, and for which questions."""

import logging
import re

import pytest
from endpoint import Endpoint, served

from posgap.foundation.errors import PosgapError
from posgap.foundation.files import write_jsonl
from posgap.measurement.evidence import Evidence
from posgap.mitigations.search.report import read_mitigate
from posgap.options.mitigate import MitigateConfig
from posgap.verbs.mitigate import mitigate


def reads_both_ends(text: str) -> str:
    """A model that reads the first and the last document alone."""
    documents = [line for line in text.splitlines() if line.startswith("Document [")]
    person = re.search(r"Person\d+x", documents[0] + documents[-1])
    return person[0] if person else "I do not know"


def answers_none(text: str) -> str:
    return "I do not know"


@pytest.fixture
def config(tmp_path, monkeypatch):
    """Of 64 questions with five passages: every fourth has its relevant one first, all others have it second."""
    monkeypatch.setenv("POSGAP_RETRIES", "0")
    rows = []
    for i in range(64):
        texts = [f"Nobody {i} got it.", "It rained.", "It snowed.", "It froze.", "It thawed."]
        texts[int(i % 4 > 0)] = f"Prize {i} went to Person{i}x."
        rows.append({"question": f"Who got prize {i}?", "answers": [f"Person{i}x"], "passages": texts})
    write_jsonl(tmp_path / "log.jsonl", rows)
    return MitigateConfig(
        examples=tmp_path / "log.jsonl", task="rag", n_docs=5, model="m", backend="openai",
        out=tmp_path / "found", budget="1h", methods=["reordering", "fewer", "reversed"],
    )  # fmt: skip


@pytest.mark.full
def test_gains_are_paired_with_the_retriever_s_order_and_come_with_code(config, caplog):
    caplog.set_level(logging.INFO)
    with served(Endpoint(reads_both_ends)) as endpoint:
        out = mitigate(config.model_copy(update={"base_url": endpoint.url}))
        n_prompts = endpoint.seen.total()
    result = read_mitigate(out)
    wrong = len(result.retrieved.moved)
    accuracy = 100 * (32 - wrong) / 32
    assert 16 < wrong < 32 and result.retrieved.accuracy == pytest.approx(accuracy)
    first = result.retrieved.moved[0]
    assert (first.ranks, first.right_at, first.response) == ([2], ["1", "5"], "I do not know")
    assert result.headline.startswith("Position costs ") and f", and {result.choice} helps: +" in result.headline

    by_name = {each.name: each for each in result.found}
    for name, won, lost in (("reordering", wrong, 0), ("reversed", 0, 0)):
        over = by_name[name].measured.over_retrieved
        assert (over.won, over.lost, over.gain) == (won, lost, pytest.approx(100 * won / 32))
        assert over.accuracy == pytest.approx(accuracy + over.gain) and over.gain == by_name[name].measured.gain
    # Half of five passages are three, of which the second is in the middle; of two it is the last.
    assert by_name["fewer"].settings == {"share": 0.25} and by_name["fewer"].measured.over_retrieved.won == wrong
    assert by_name["fewer"].measured.tokens is None  # which nobody counted
    assert not by_name["reversed"].helps and not by_name["reordering"].narrows

    assert result.choice in ("reordering", "fewer")
    taken = by_name[result.choice]
    assert f"over as retrieved, {wrong} questions won and 0 lost; an answer takes one call, as before" in taken.gains
    assert "def reorder(passages)" in taken.code and not taken.command
    said = [message for message in caplog.messages if f"{taken.name} helps: {taken.gains}" in message]
    assert len(said) == 1, "the gain is said once"
    assert f"page: {(out / 'mitigate.html').as_uri()}" in caplog.messages
    assert "all 64 questions were asked, in " in caplog.text and "only more questions" in caplog.text
    # Trials ask each question once. A sweep asks five positions, one of them as retrieved; reordering makes the same
    # prompt of all of them, and the best two of five passages have the gold at their first or second place.
    assert n_prompts == 32 * (1 + 3 + 2 + 1) + 32 * (5 + 1 + 2 + 5)

    page = (out / "mitigate.html").read_text()
    assert "Mitigations of m: task rag, 32 questions" in page and "gain over as retrieved, points" in page
    assert "The change of gap compares placements on one half of the examples" in page
    assert first.question in page and "def reorder(passages)" in page and page.count("by construction") == 3
    base, reordered = (Evidence(out / "sweeps" / name) for name in ("base", "reordering"))
    assert base.baselines["as-retrieved"].scores.mean() == pytest.approx(accuracy / 100)
    assert reordered.baselines["as-retrieved"].scores.mean() == 1, "the retriever's order is what it changed"


@pytest.mark.full
def test_where_position_costs_nothing_that_is_said_and_nothing_is_advised(config):
    with served(Endpoint(answers_none)) as endpoint:
        result = read_mitigate(mitigate(config.model_copy(update={"base_url": endpoint.url})))
    assert not result.choice and not result.helpful_outcomes and not result.retrieved.moved
    assert result.headline.startswith("Whether position costs anything cannot be told: 0.0 points")
    assert result.headline.endswith("(reordering, fewer, reversed): keep the model unchanged.")


def test_what_has_relevant_documents_alone_is_refused_before_anything_is_asked(config):
    passages = [{"text": text, "label": text != "e"} for text in "abcde"]
    rows = [{"question": f"{i}?", "answers": ["a"], "passages": passages} for i in range(64)]
    write_jsonl(config.examples, rows)
    with served(Endpoint(answers_none)) as endpoint, pytest.raises(PosgapError, match="64 of 64 .* 4 documents"):
        mitigate(config.model_copy(update={"n_docs": 4, "base_url": endpoint.url}))
    assert not endpoint.seen
