"""Every prompt ends in an outcome: counted, shown, bounded, and nothing that somebody can write away."""

import base64
import gzip
import re
import shutil

import mlflow
import pytest
from endpoint import RECORD, Endpoint, retrieve, served
from hypothesis import given
from hypothesis import strategies as st

from posgap.data.reading import write_examples
from posgap.foundation.errors import Malformed, PosgapError, Rejection
from posgap.foundation.files import read_json, read_jsonl, work_folder, write_json, write_jsonl
from posgap.gating.decision_page import decision_page
from posgap.gating.demands import Policy
from posgap.gating.policy import read_policy
from posgap.gating.replay import replay_verdict
from posgap.gating.verdict import judge
from posgap.generation.generator import Completion
from posgap.measurement import resumption
from posgap.measurement.evidence import Evidence
from posgap.measurement.outcomes import OutcomeCounts, Outcomes
from posgap.measurement.sweeps import read_sweep
from posgap.options.compare import CompareConfig
from posgap.options.gate import GateConfig
from posgap.options.merge import MergeConfig
from posgap.options.sweep import SweepConfig
from posgap.options.teacher import TeacherConfig
from posgap.storage.inputs import read_manifest
from posgap.tasks.examples import KVExample
from posgap.verbs.compare import compare
from posgap.verbs.gate import judge_and_write
from posgap.verbs.merge import merge
from posgap.verbs.sweep import sweep_model
from posgap.verbs.teacher import teacher

N, DOCS, MIDDLE = 100, 5, 3
COUNTS = {"answered": N - 4, "refused": 3, "empty": 1, "cut": 2}  # at the position in the middle
counts = st.builds(OutcomeCounts, **dict.fromkeys(OutcomeCounts.model_fields, st.integers(0, 9)))


def filtering(text: str) -> str | tuple[str, str]:
    """Answers rightly; but of prompts that ask for the third record some meet a content filter, and so on."""
    records, _, question = text.rpartition("Key:")
    keys = [key for key, _ in RECORD.findall(records)]
    key = re.search(r'"([\w-]+)"', question)[1]
    endings = {0: ("", "content_filter"), 1: ("", "content_filter"), 2: ("", "content_filter"), 3: ("", "stop")}
    endings |= dict.fromkeys((4, 5), (retrieve(text), "length"))
    return endings.get(int(key[:2], 16), retrieve(text)) if keys.index(key) == MIDDLE - 1 else retrieve(text)


def example(number: int) -> KVExample:
    """Its key begins with its number."""
    records = [(f"{number:02x}-{i}", f"v{(number + i) % 7}") for i in range(DOCS)]
    key, value = records[number % DOCS]
    return KVExample(id=f"kv-{number}", question=key, answers=[value], key=key, value=value, records=records)


EXAMPLES = [example(number) for number in range(N)]


def options(folder, endpoint, **more) -> dict:
    if not (folder / "e.jsonl").exists():
        write_examples(folder / "e.jsonl", EXAMPLES)
    asked = {"examples": folder / "e.jsonl", "model": "served", "backend": "openai", "base_url": endpoint.url}
    return {**asked, "n_docs": DOCS, "concurrency": 16, "label": "filtered", "out": folder / "out", **more}


@pytest.fixture(scope="module")
def sweeps(tmp_path_factory):
    """A sweep of the endpoint that filters, with figures since it may; and one of an endpoint that answers all."""
    folder = tmp_path_factory.mktemp("sweeps")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
        with served(Endpoint(filtering)) as endpoint:
            filtered = sweep_model(SweepConfig(**options(folder, endpoint, out=folder / "filtered", max_unanswered=5)))
        with served(Endpoint()) as endpoint:
            answered = sweep_model(SweepConfig(**options(folder, endpoint, out=folder / "answered", label="answered")))
    return filtered, answered


@pytest.fixture
def filtered(sweeps, tmp_path):
    shutil.copytree(sweeps[0], tmp_path / "filtered")
    return tmp_path / "filtered"


@pytest.fixture
def answered(sweeps, tmp_path):
    shutil.copytree(sweeps[1], tmp_path / "answered")
    return tmp_path / "answered"


@pytest.mark.full
@pytest.mark.usefixtures("mlflow_store")
def test_beyond_the_bound_there_are_no_figures_and_nothing_is_paid_for_twice(tmp_path, caplog):
    with served(Endpoint(filtering)) as endpoint:
        with pytest.raises(Rejection) as rejected:
            sweep_model(SweepConfig(**options(tmp_path, endpoint)))
        message = str(rejected.value)
        assert "no figures: 4 of 500 prompts were not answered (refused 3, empty 1), at most 4.0 % at a plac" in message
        assert "(3), and 2 % is allowed; most often: finish_reason content_filter (3 times). See " in message
        (early,) = [record.getMessage() for record in caplog.records if "will give no figures" in record.getMessage()]
        assert "more than the 2 % of prompts" in early and "with the gold document at 3" in early
        (run,) = mlflow.search_runs(experiment_names=["posgap"], output_format="list")
        assert run.data.metrics["unanswered_worst"] == 4 and "gap" not in run.data.metrics
        assert not (tmp_path / "out").exists()
        rows = [row for _, row in read_jsonl(tmp_path / "out.rejected" / "predictions.jsonl")]
        assert len(rows) == N * DOCS
        assert [row["outcome"] for row in rows if "outcome" in row] == ["refused"] * 3 + ["empty"]
        assert all(row["reason"] and row["placement"] == [MIDDLE] for row in rows if "outcome" in row)
        endpoint.seen.clear()
        swept = sweep_model(SweepConfig(**options(tmp_path, endpoint, max_unanswered=4)))
        assert not endpoint.seen and not work_folder(tmp_path / "out").exists()
        # It is complete now. Other bounds ask for nothing, and a lower one does not let its figures pass.
        assert sweep_model(SweepConfig(**options(tmp_path, endpoint, max_unanswered=50))) == swept
        with pytest.raises(PosgapError, match=r" 4.0 % .*\(3\), .* 2 % .*--max-unanswered"):
            sweep_model(SweepConfig(**options(tmp_path, endpoint)))
        assert not endpoint.seen
    assert read_sweep(swept).outcomes.by_placement[MIDDLE - 1] == OutcomeCounts(**COUNTS, unclean=2)


def test_the_counts_stand_wherever_the_figures_do(filtered):
    written = read_json(filtered / "sweep.json")
    middle, elsewhere = COUNTS | {"unclean": 2}, {"answered": N, "unclean": 0}
    at = [middle if position == MIDDLE else elsewhere for position in range(1, DOCS + 1)]
    total = {"answered": DOCS * N - 4, "refused": 3, "empty": 1, "cut": 2, "unclean": 2}
    assert written["outcomes"] == {**total, "by_placement": at}
    assert written["accuracy"] == [100, 100, 96, 100, 100]
    sentence = "4 of 500 prompts were not answered (refused 3, empty 1), at most 4.0 % at a placement (3)"
    page = (filtered / "sweep.html").read_text()
    assert (
        sentence in page
        and "How the prompts ended" in page
        and "Of 496 answers 2 are cut at the limit of tokens" in page
    )
    embedded = gzip.decompress(base64.b64decode(re.search(r'id="data-answers">([^<]*)<', page)[1])).decode()
    assert "refused" in embedded and "content_filter" in embedded
    assert sentence in (filtered / "model_card.md").read_text()


def test_a_sweep_that_was_answered_says_nothing_of_it(answered):
    assert read_sweep(answered).outcomes.n_unanswered == 0
    shown = re.sub(r"<script.*?</script>", "", (answered / "sweep.html").read_text(), flags=re.DOTALL)
    assert "not answered" not in shown + (answered / "model_card.md").read_text()
    usual = {"id", "content", "placement", "response", "correct", "echo"}
    assert all(row.keys() == usual for _, row in read_jsonl(answered / "predictions.jsonl"))


def test_the_gate_has_a_rule_for_it_and_trusts_no_champion_that_was_not_answered(filtered, answered, tmp_path):
    verdict = judge(filtered, answered, None, Policy(max_gap=20, mean_tolerance=10, advantageous_tolerance=10))
    assert verdict.outcome == "refused"
    (broken,) = [ruling for ruling in verdict.rules if ruling.outcome == "fail"]
    assert broken.name == "answered" and broken.value == 4 and broken.threshold == 2
    page = decision_page(verdict, {"candidate": read_sweep(filtered), "base": read_sweep(answered)})
    assert "too many prompts were not answered at some position" in page and "How the prompts ended" in page
    for champion in (None, filtered):
        base = filtered if champion is None else answered
        against = judge(answered, base, champion, Policy())
        role = "champion" if champion else "base"
        assert against.outcome == "not enough evidence" and against.evidence_gaps[0].startswith(
            f"{role}: 4 of 500 prompts"
        )
    lenient = Policy(max_gap=20, mean_tolerance=10, advantageous_tolerance=10, max_unanswered=4)
    assert judge(filtered, answered, filtered, lenient).passed
    replay_verdict(judge_and_write(GateConfig(candidate=filtered, base=answered, out=tmp_path / "gate")))


def test_a_policy_that_does_not_say_it_allows_little(tmp_path):
    (tmp_path / "policy.yaml").write_text("max_gap: 20\n")
    assert read_policy(tmp_path / "policy.yaml").max_unanswered == 2


def rewritten(folder, change) -> None:
    write_jsonl(folder / "predictions.jsonl", [change(row) for _, row in read_jsonl(folder / "predictions.jsonl")])


def test_counts_that_were_edited_are_noticed(filtered):
    written = read_json(filtered / "sweep.json")
    all_answered = Outcomes.at([OutcomeCounts(answered=N)] * DOCS).model_dump(mode="json")
    write_json(filtered / "sweep.json", written | {"outcomes": all_answered})
    with pytest.raises(PosgapError, match="outcomes.answered .* 500, .* 496;"):
        judge(filtered, None, None, Policy())
    write_json(filtered / "sweep.json", written | {"outcomes": written["outcomes"] | {"answered": 500}})
    with pytest.raises(Malformed, match="answered: 500 .* 496 "):
        read_sweep(filtered)
    write_json(filtered / "sweep.json", written | {"outcomes": {"answered": 500, "by_placement": [{"answered": 500}]}})
    with pytest.raises(Malformed, match="outcomes: "):
        read_sweep(filtered)


def test_who_leaves_the_outcomes_out_is_judged_by_what_was_said(filtered):
    """As an older posgap wrote them, which took what was not answered for an empty response."""
    written = read_json(filtered / "sweep.json")
    del written["outcomes"], written["settings"]["max_unanswered"]
    write_json(filtered / "sweep.json", written)
    rewritten(filtered, lambda row: {name: row[name] for name in ("id", "content", "placement", "response", "correct")})
    assert read_sweep(filtered).outcomes is None
    assert Evidence(filtered).outcomes.by_placement[MIDDLE - 1] == OutcomeCounts(answered=N - 4, empty=4)
    verdict = judge(filtered, None, None, Policy(max_gap=20))
    assert [ruling.name for ruling in verdict.rules if ruling.outcome == "fail"] == ["answered"]


def test_what_was_not_answered_cannot_be_right(filtered):
    rewritten(filtered, lambda row: row | {"correct": True})
    with pytest.raises(PosgapError, match="kv-0: refused at 3,"):
        Evidence(filtered)


def test_an_outcome_that_nobody_knows_is_refused(filtered):
    rewritten(filtered, lambda row: row | {"outcome": "lost"})
    with pytest.raises(PosgapError, match="predictions.jsonl:1: field `outcome`"):
        Evidence(filtered)


@pytest.mark.full
def test_merged_shards_have_the_outcomes_of_the_whole(filtered, tmp_path):
    with served(Endpoint(filtering)) as endpoint:
        bounds = {1: 0, 2: 5}  # the second has the middle, and was given a bound of its own
        parts = [
            sweep_model(
                SweepConfig(**options(tmp_path, endpoint, out=tmp_path / f"{i}", shard=f"{i}/2", max_unanswered=most))
            )
            for i, most in bounds.items()
        ]
        merged = merge(MergeConfig(sweeps=parts, out=tmp_path / "merged"))
    assert (merged / "predictions.jsonl").read_bytes() == (filtered / "predictions.jsonl").read_bytes()
    whole, together = (read_json(folder / "sweep.json") for folder in (filtered, merged))
    assert together["outcomes"] == whole["outcomes"] and together["settings"]["max_unanswered"] == 5


def test_a_comparison_says_whose_prompts_were_not_answered(filtered, answered, tmp_path):
    compared = compare(CompareConfig(sweeps=[answered, filtered], out=tmp_path / "compared"))
    (difference,) = read_json(compared / "comparison.json")["differences"]
    assert "filtered: 4 of 500 prompts were not answered" in difference["verdict"]
    assert "answered: " not in difference["verdict"].replace("not answered", "").replace("filtered: ", "")


@given(st.lists(counts, min_size=1, max_size=6))
def test_totals_are_those_of_the_placements_and_the_worst_is_the_worst(by_placement):
    outcomes = Outcomes.at(by_placement)
    assert outcomes.prompts == sum(c.prompts for c in by_placement)
    assert (
        outcomes.worst_share
        == max(c.percent_unanswered for c in by_placement)
        == by_placement[outcomes.worst].percent_unanswered
    )
    assert bool(outcomes.unanswered_text([[i + 1] for i in range(len(by_placement))])) == bool(outcomes.n_unanswered)
    assert Outcomes(**outcomes.model_dump()) == outcomes


@pytest.mark.usefixtures("mlflow_store")
def test_a_teacher_leaves_out_what_was_not_answered_and_counts_it(tmp_path, model_folder, monkeypatch):
    write_examples(tmp_path / "e.jsonl", EXAMPLES[:4])
    said = [Completion(EXAMPLES[0].value, [5, 2]), Completion("no", [5, 2], cut=True)]
    said += [Completion("", [2], "empty", reason="no text"), Completion("", [5], "truncated", thoughts="hm")]

    class Scripted:
        def generate(self, groups, sampling):
            yield from ((index, 0, said[index]) for index, _ in enumerate(groups))

    monkeypatch.setattr(resumption, "open_generator", lambda config, builder: Scripted())
    shared = {"examples": tmp_path / "e.jsonl", "model": str(model_folder), "n_docs": DOCS, "advantageous": "1"}
    made = teacher(TeacherConfig(**shared, keep_incorrect=True, out=tmp_path / "out"))
    assert [row["id"] for _, row in read_jsonl(made / "responses.jsonl")] == ["kv-0", "kv-1"]
    summary = read_json(made / "teacher.json")
    assert summary["outcomes"] == OutcomeCounts(answered=2, truncated=1, empty=1, cut=1).model_dump()
    assert (summary["examples"], summary["accuracy"]) == (4, 25)
    assert mlflow.get_run(read_manifest(made)["mlflow_run_id"]).data.metrics["unanswered"] == 50
