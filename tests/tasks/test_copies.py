"""Answers that are cut or copies of the prompt: told apart, counted by placement, said, and refused by the gate."""

import shutil
from collections import Counter

import pytest
from endpoint import RECORD, Endpoint, retrieve, served
from hypothesis import given
from hypothesis import strategies as st
from refusals import refuses
from written_sweeps import write_sweep

from posgap.data.reading import write_examples
from posgap.foundation.errors import Contradiction
from posgap.foundation.files import read_json, read_jsonl, write_json, write_jsonl
from posgap.gating.demands import Policy
from posgap.gating.verdict import judge
from posgap.measurement.outcomes import Ending, OutcomeCounts, Outcomes
from posgap.measurement.summary import copies_warning
from posgap.measurement.sweeps import read_sweep
from posgap.options.sweep import SweepConfig
from posgap.tasks.echo import Copying, find_copying
from posgap.tasks.examples import KVExample
from posgap.tasks.metrics import RightAnswers
from posgap.verbs.sweep import sweep_model

N, DOCS = 20, 5
ANSWERS = RightAnswers(["red"], ["blue", "green"])
endings = st.builds(
    Ending,
    st.sampled_from(["answered", "refused", "empty"]),
    st.booleans(),
    st.booleans(),
    st.sampled_from(["", "after", "before"]),
)


@pytest.mark.parametrize(
    ("response", "others"),
    [
        ("red", ""),
        ("blue", ""),  # wrong, and no list
        ("no idea", ""),
        ("red, blue", "after"),
        ("blue, red, green", "before"),
        ("red red", ""),
    ],
)
def test_others_stand_before_the_answer_or_after_it(response, others):
    assert find_copying(lambda: pytest.fail("short"), response, ANSWERS) == Copying(False, others)


def test_only_a_long_response_is_compared_with_the_prompt():
    prompt = " ".join(f"w{i}" for i in range(60))
    assert find_copying(lambda: prompt, prompt, ANSWERS) == Copying(True, "")
    assert find_copying(lambda: "another prompt", prompt, ANSWERS) == Copying(False, "")


def test_a_quoted_answer_is_no_echo_unless_it_goes_on_to_another_candidate():
    answer, prompt = " ".join(f"w{i}" for i in range(20)), " ".join(f"w{i}" for i in range(60))
    quoted, words = f"{answer} w20 w21 w22 w23", prompt.split()
    assert find_copying(lambda: prompt, quoted, RightAnswers([answer], ["w40"])) == Copying(False, "")
    assert find_copying(lambda: prompt, quoted, RightAnswers([answer], ["w23"])) == Copying(True, "after")
    assert find_copying(lambda: " ".join(words[::-1]), quoted, RightAnswers([answer], ["w23"])) == Copying(
        False, "after"
    )


@given(st.lists(endings))
def test_answers_alone_are_counted(ended):
    counts, said = OutcomeCounts.count(ended), [e for e in ended if e.outcome == "answered"]
    assert (counts.cut, counts.echo) == (sum(e.cut for e in said), sum(e.echo for e in said))
    assert counts.unclean == (sum(e.cut or e.echo for e in said) if said else None)
    by_place = Counter(e.others for e in said)
    assert (counts.others_after, counts.others_before) == (by_place["after"], by_place["before"])
    assert counts.is_known


@given(st.lists(endings, min_size=1))
def test_where_nobody_looked_at_an_answer_nothing_is_known(ended):
    unseen = [ending._replace(echo=None) for ending in ended]
    counts = OutcomeCounts.count([*unseen, Ending("answered")])
    assert counts.unclean is None and not counts.is_known
    assert not Outcomes.at([counts]).metrics.keys() & {"echo", "unclean_worst"}


def marked(folder, count: int, position: int, **flags):
    """A sweep with such flags at the first `count` rows of a position."""
    rows, left = [row for _, row in read_jsonl(folder / "predictions.jsonl")], count
    for row in rows:
        if row["placement"] == [position] and left:
            row |= flags
            left -= 1
    write_jsonl(folder / "predictions.jsonl", rows)
    return folder


@pytest.mark.parametrize("flags", [{"echo": True}, {"cut": True}, {"cut": True, "echo": True}])
@pytest.mark.parametrize(("count", "outcome"), [(20, "pass"), (21, "fail")])
def test_the_gate_refuses_more_copies_at_a_position_than_it_allows(tmp_path, flags, count, outcome):
    folder = marked(write_sweep(tmp_path / "a", [0.9] * 5), count, 2, **flags)  # of 200
    verdict = judge(folder, folder, None, Policy(max_gap=20))
    assert {rule.name: rule.outcome for rule in verdict.rules}["clean"] == outcome
    assert verdict.outcome == ("admitted" if outcome == "pass" else "refused")
    assert judge(folder, folder, None, Policy(max_gap=20, max_unclean=100)).passed


def test_candidates_beside_the_answer_are_counted_and_not_refused(tmp_path):
    folder = marked(write_sweep(tmp_path / "a", [0.9] * 5), 200, 2, others="after")
    assert judge(folder, folder, None, Policy(max_gap=20, max_unclean=0)).passed


def test_of_an_older_sweep_the_gate_says_that_nobody_looked(tmp_path):
    folder = write_sweep(tmp_path / "old", [0.9] * 5)
    rows = [row for _, row in read_jsonl(folder / "predictions.jsonl")]
    write_jsonl(folder / "predictions.jsonl", [{n: x for n, x in row.items() if n != "echo"} for row in rows])
    verdict = judge(folder, folder, None, Policy(max_gap=20))
    assert verdict.outcome == "not enough evidence" and not read_sweep(folder).outcomes
    assert [complaint[:44] for complaint in verdict.evidence_gaps] == ["an older posgap swept the candidate, and did"]
    assert judge(folder, folder, None, Policy(max_gap=20, max_unclean=100)).passed
    # Cut answers were counted before: more of them than are allowed refuse it all the same.
    assert judge(marked(folder, 21, 2, cut=True), folder, None, Policy(max_gap=20)).outcome == "refused"


def example(number: int) -> KVExample:
    records = [(f"{number:04x}-k{i}", f"{number:04x}-v{i}") for i in range(DOCS)]
    key, value = records[number % DOCS]
    return KVExample(id=f"kv-{number}", question=key, answers=[value], key=key, value=value, records=records)


def copying(text: str) -> tuple[str, str] | str:
    """Copies the records until the limit cuts it, of every other example; else answers rightly."""
    number = int(RECORD.search(text)[1][:4], 16)
    return (text[text.index("{") : text.rindex("}")], "length") if number % 2 else retrieve(text)


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    folder = tmp_path_factory.mktemp("copies")
    write_examples(folder / "e.jsonl", [example(number) for number in range(N)])
    made = {}
    with served(Endpoint(copying)) as endpoint:
        for metric in ("", "contains_any"):
            made[metric] = sweep_model(
                SweepConfig(
                    examples=folder / "e.jsonl", model="m", backend="openai", base_url=endpoint.url, n_docs=DOCS,
                    metric=metric, label=metric or "m", out=folder / f"out-{metric}",
                )
            )  # fmt: skip
    return made


def test_copies_are_right_by_the_old_metric_and_wrong_by_the_new_one(swept):
    assert read_sweep(swept["contains_any"]).mean == 100
    assert read_sweep(swept[""]).accuracy == [50] * DOCS
    for folder in swept.values():
        rows = [row for _, row in read_jsonl(folder / "predictions.jsonl")]
        assert [row["echo"] for row in rows] == [int(row["id"][3:]) % 2 == 1 for row in rows]
        assert {row["others"] for row in rows if row["echo"]} <= {"after", "before"}
        at_each = read_sweep(folder).outcomes.by_placement
        assert {(c.cut, c.echo, c.unclean, c.others) for c in at_each} == {(N // 2,) * 4}
        # A copy names the value first where its record stands first.
        assert [c.others_before for c in at_each] == [0] + [N // 2] * (DOCS - 1)


SAID = "Of 100 answers 50 are cut at the limit of tokens, 50 repeat the prompt at length, 50 name other candidates"


def test_what_people_read_says_it(swept):
    page, card = ((swept[""] / name).read_text() for name in ("sweep.html", "model_card.md"))
    assert SAID in card and SAID in page
    curves = page[page.index('class="broad copies"') : page.index('class="narrow copies"')]
    assert curves.count("<polyline") == 3 and curves.count("10 of 20") == 3 * DOCS


def test_the_sweep_prints_what_to_do(swept):
    result = read_sweep(swept[""])
    warning = copies_warning(result)
    assert warning.startswith(SAID) and "--system" in warning and "--max-new-tokens" not in warning
    without = result.model_copy(update={"asked": result.asked.model_copy(update={"template": ""})})
    assert "--stop" in copies_warning(without) and "--system" not in copies_warning(without)
    few = [OutcomeCounts(answered=N, unclean=2, cut=2)] * DOCS
    assert not copies_warning(result.model_copy(update={"outcomes": Outcomes.at(few)}))
    more = [*few[1:], OutcomeCounts(answered=N, unclean=3, cut=3)]
    cut = copies_warning(result.model_copy(update={"outcomes": Outcomes.at(more)}))
    assert "--max-new-tokens 200" in cut and "--system" not in cut


def test_counts_that_its_predictions_do_not_give_are_no_evidence(swept, tmp_path):
    folder = shutil.copytree(swept[""], tmp_path / "edited")
    written = read_json(folder / "sweep.json")
    clean = Outcomes.at([OutcomeCounts(answered=N, unclean=0)] * DOCS).model_dump(mode="json")
    write_json(folder / "sweep.json", written | {"outcomes": clean})
    with refuses(Contradiction, "outcomes", at=folder / "sweep.json"):
        judge(folder, None, None, Policy())
