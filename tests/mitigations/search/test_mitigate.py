"""`mitigate` and `apply`: what they try, on which examples, what they write, and what they refuse."""

import json
import logging
import shutil
from contextlib import contextmanager

import pytest
from answerers import Saying
from examples import kv_example, qa_example
from transformers import AutoModelForCausalLM

from posgap.data.reading import read_examples, write_examples
from posgap.distillation.methods import method_of
from posgap.foundation.errors import BadOption, PosgapError
from posgap.foundation.files import read_json, work_folder, write_json
from posgap.measurement.comparison import compare_sweeps
from posgap.measurement.evidence import Evidence
from posgap.measurement.predictions import read_predictions
from posgap.measurement.sweep_run import SweepRun
from posgap.measurement.sweeps import read_sweep
from posgap.mitigations.in_force import load_model
from posgap.mitigations.registry import MITIGATIONS
from posgap.mitigations.search import budget
from posgap.mitigations.search.budget import Clock, fit_examples
from posgap.mitigations.search.compared_model import ComparedModel
from posgap.mitigations.search.report import MitigationOutcome, blank_outcome, rank_helpful, read_mitigate
from posgap.mitigations.search.selection import FINALISTS, pick_finalists
from posgap.mitigations.search.splits import split
from posgap.mitigations.state import in_force
from posgap.models import CONFIG_KEY, MITIGATIONS_KEY
from posgap.models.closing import is_closed, read_config
from posgap.options.apply import ApplyConfig
from posgap.options.mitigate import MitigateConfig, seconds_of
from posgap.options.sweep import SweepConfig
from posgap.scaling.fitness import ForcedEvaluator
from posgap.tasks.content import content_keys, find_groups
from posgap.verbs.apply import _best, apply
from posgap.verbs.mitigate import mitigate
from posgap.verbs.sweep import sweep_model


@pytest.fixture(scope="module")
def model_folder(values_folder):
    return values_folder


@pytest.fixture
def config(tmp_path, model_folder):
    write_examples(tmp_path / "examples.jsonl", [kv_example(i) for i in range(12)])
    return MitigateConfig(
        examples=tmp_path / "examples.jsonl",
        model=str(model_folder),
        out=tmp_path / "found",
        n_docs=4,
        max_new_tokens=1,
        methods=["lpes", "reversed", "ms-poe"],
        positions=["1", "4"],
        budget="1h",
    )


def responses(swept) -> list[str]:
    """What a model said in a sweep, the examples in their order, each at all placements."""
    return [row["response"] for row in read_predictions(swept)]


@pytest.fixture
def ask(config, tmp_path):
    """Sweeps examples as a comparison does, by a mitigation of prompts or of a model; returns the sweep's folder."""

    def run(examples, name="", settings=None, model=config.model):
        where = tmp_path / f"asked-{len(list(tmp_path.glob('asked-*')))}"
        write_examples(where.with_suffix(".jsonl"), examples)
        more = {}
        if name and MITIGATIONS[name].of_model:
            given = ApplyConfig(
                model=model, mitigation=name, mitigation_settings=settings, out=where.with_name(f"{where.name}-m")
            )
            model = str(apply(given))
        elif name:
            more = {"mitigation": name, "mitigation_settings": settings}
        alike = {"n_docs": 4, "max_new_tokens": 1, "positions": config.positions}
        return sweep_model(SweepConfig(examples=where.with_suffix(".jsonl"), model=model, out=where, **alike, **more))

    return run


def test_examples_are_split_by_what_they_are(tmp_path):
    examples = [kv_example(i) for i in range(21)]
    parts = split(examples)
    assert list(map(len, parts)) == [10, 11]
    names = [set(content_keys(part)) for part in parts]
    assert len(names[0] | names[1]) == 21
    renamed = [each.model_copy(update={"id": f"other-{each.id}"}) for each in reversed(examples)]
    assert [content_keys(part) for part in split(renamed)] == [content_keys(part) for part in parts]
    # Of two with the same content the first stays.
    assert split([*examples, *renamed]) == parts
    assert list(map(len, split(examples[:4]))) == [2, 2]
    with pytest.raises(PosgapError, match="^3 .*: 1 .* 2 "):
        split([*examples[:3], *renamed[-3:]])


def test_examples_that_hang_together_stay_in_one_half():
    """Halves by content alone shared questions: of mitigations without effect up to 6.7 % seemed to help, 2.5 asked."""
    examples = [qa_example(i).model_copy(update={"question": f"Who got the {i // 4}th?"}) for i in range(40)]
    assert len(find_groups(examples)) == 10
    halves = [{example.question for example in half} for half in split(examples)]
    assert not halves[0] & halves[1] and len(halves[0] | halves[1]) == 10
    assert [len(half) for half in split(examples)] == [20, 20]


@pytest.mark.full
@pytest.mark.usefixtures("pictures")
def test_what_suits_a_model_is_chosen_on_one_half_and_measured_on_the_other(config, ask):
    """Choice and figures are those of sweeps by hand."""
    out = mitigate(config)
    result = read_mitigate(out)
    assert result.examples == {"selection": 6, "held_out": 6}
    held_out = read_examples(out / "held_out.jsonl")
    selection = [each for each in read_examples(config.examples) if each not in held_out]
    assert set(content_keys(selection)) == set(result.chosen_by) and len(selection) == len(held_out) == 6
    by_name = {each.name: each for each in result.measured_outcomes}
    assert by_name.keys() == {"lpes", "reversed", "ms-poe"} and by_name["lpes"].tried == 3

    tried = read_json(work_folder(config.out) / "tried.json") if work_folder(config.out).exists() else None
    assert tried is None, "what was kept goes when the output is there"
    base = read_sweep(ask(selection)).mean
    gains = {}
    for found in result.measured_outcomes:
        gains[found.name] = read_sweep(ask(selection, found.name, found.settings)).mean - base
        assert found.selection_gain == pytest.approx(gains[found.name], abs=1e-3)
    assert [each.name for each in result.measured_outcomes] == sorted(gains, key=lambda name: -gains[name])
    for other in MITIGATIONS["reversed"].list_settings():
        assert read_sweep(ask(selection, "reversed", other.model_dump())).mean - base <= gains["reversed"] + 1e-9

    assert responses(ask(held_out)) == responses(out / "sweeps" / "base")
    for name, found in by_name.items():
        assert responses(ask(held_out, name, found.settings)) == responses(out / "sweeps" / name)
    sweeps = [Evidence(out / "sweeps" / name) for name in ("base", *by_name)]
    together = compare_sweeps(sweeps, together=True).differences
    for found, swept, difference in zip(result.measured_outcomes, sweeps[1:], together, strict=True):
        assert difference == found.measured.difference and difference.mean == pytest.approx(
            swept.sweep.mean - result.base_mean
        )
        assert found.measured.mean == swept.sweep.mean and found.measured.cost.prefill > 0
        is_of_model = found.name != "reversed"
        assert (swept.sweep.model_digest != sweeps[0].sweep.model_digest) == is_of_model
        assert (swept.sweep.mitigation is None) == is_of_model
        assert (f"--mitigation {found.name}" in found.command) == is_of_model == (not found.code)
    page = (out / "mitigate.html").read_text()
    assert "<svg" in page and all(found.name in page for found in result.found) and "What to change" in page


def test_factors_are_those_of_scale_search(config, monkeypatch):
    """Its search finds the candidates, by forcing answers, and the comparison tries the best three by generation."""
    searched, correct = [], ForcedEvaluator.correct

    def spied(self, candidates):
        searched.extend(candidates)
        return correct(self, candidates)

    monkeypatch.setattr(ForcedEvaluator, "correct", spied)
    result = read_mitigate(mitigate(config.model_copy(update={"methods": ["lpes"], "metric": "contains_any"})))
    (lpes,) = result.found
    assert tuple(lpes.settings["factors"]) in searched and lpes.tried == 3
    assert len(set(searched)) > 16  # more than a generation


def test_what_the_model_says_as_it_is_is_looked_at(config, caplog, monkeypatch):
    @contextmanager
    def under(self, name, settings):
        yield Saying("well")

    monkeypatch.setattr(ComparedModel, "with_mitigation", under)
    monkeypatch.setattr("posgap.mitigations.search.timing.measure_cost", lambda *_: None)
    with caplog.at_level(logging.INFO):
        mitigate(config.model_copy(update={"methods": ["reversed"], "max_new_tokens": 20}))
    lines = [message for message in caplog.messages if "the first answers" in message]
    assert "12 of 12 responses are cut at 20 tokens" in lines[0] and "--max-new-tokens 40" in lines[0]


@pytest.mark.full
def test_an_interrupted_comparison_goes_on_and_ends_as_if_it_had_not_been(config, tmp_path, monkeypatch):
    def tidied(out):
        found = read_json(out / "mitigate.json")["found"]
        for each in found:
            del each["command"], each["measured"]["cost"]
        return found

    whole = tidied(mitigate(config.model_copy(update={"out": tmp_path / "whole"})))
    over, run = [], SweepRun.run
    interruptions = [("lpes", "selection"), ("ms-poe", "selection"), ("base", "held_out"), ("reversed", "held_out")]

    def interrupted(sweep_run, *more):
        settings, digests = sweep_run.settings, sweep_run.digests
        asked = settings.label, settings.examples.stem
        again = (asked, digests) in over and asked[0] != "base"
        assert not again or asked[1] == "held_out", "what was tried is not tried again"
        if interruptions and asked == interruptions[0]:
            interruptions.pop(0)
            raise KeyboardInterrupt
        run(sweep_run, *more)
        over.append((asked, digests))

    monkeypatch.setattr(SweepRun, "run", interrupted)
    for n_trials in (1, 5, 6, 6):
        with pytest.raises(KeyboardInterrupt):
            mitigate(config)
        kept = read_json(work_folder(config.out) / "tried.json")
        assert len(kept["trials"]) >= n_trials and kept["seconds"] > 0
    assert tidied(mitigate(config)) == whole


def test_it_stops_at_the_budget_with_the_model_as_it_is_and_one_mitigation(config):
    for methods in (["reversed", "lpes"], ["lpes", "reversed"]):
        changes = {"budget": "0.001s", "methods": methods, "out": config.out.with_name(methods[0])}
        result = read_mitigate(mitigate(config.model_copy(update=changes)))
        assert [each.name for each in result.measured_outcomes] == methods[:1]
        (left_out,) = [each for each in result.found if not each.measured]
        assert left_out.reason == "the budget was over before it was tried" and not left_out.tried
        assert result.examples == {"selection": 2, "held_out": 2}  # as few as an interval needs


class Timed:
    """A generator that takes a second for each answer, by a clock of its own."""

    def __init__(self, clock, generator):
        self.clock, self.generator = clock, generator

    def generate(self, groups, sampling):
        for answered in self.generator.generate(groups, sampling):
            self.clock[0] += 1
            yield answered


@pytest.fixture
def clock(monkeypatch):
    """Seconds that pass only as answers come, or as candidates are scored."""
    now, under, correct = [0.0], ComparedModel.with_mitigation, ForcedEvaluator.correct

    @contextmanager
    def timed(self, name, settings):
        with under(self, name, settings) as generator:
            yield Timed(now, generator)

    def scored(self, candidates):
        right = correct(self, candidates)
        now[0] += right.size / 2
        return right

    monkeypatch.setattr(ComparedModel, "with_mitigation", timed)
    monkeypatch.setattr(ForcedEvaluator, "correct", scored)
    monkeypatch.setattr(Clock.__init__, "__defaults__", (lambda: now[0],))
    return now


@pytest.mark.full
@pytest.mark.parametrize("minutes", [90, 10, 3])
def test_a_slow_model_is_asked_less_so_that_the_budget_is_kept(config, clock, minutes):
    """A second an answer: all examples by the model alone would take two minutes, and every setting on half an hour."""
    write_examples(config.examples, [kv_example(i) for i in range(60)])
    methods = ["ms-poe", "linear", "ntk", "yarn", "reversed", "reordering", "permutation", "lpes"]
    changes = {"budget": f"{minutes}m", "methods": methods, "metric": "contains_any"}
    result = read_mitigate(mitigate(config.model_copy(update=changes)))
    assert (0.5 if minutes < 90 else 0.2) * 60 * minutes < result.seconds <= 1.1 * 60 * minutes
    by_name = {each.name: each for each in result.found}
    assert len(result.measured_outcomes) == FINALISTS and result.examples["held_out"] >= 2
    assert all(each.measured or each.reason for each in result.found)
    if minutes == 90:
        assert result.examples == {"selection": 30, "held_out": 30}
        assert [by_name[name].tried for name in ("linear", "reordering", "permutation", "lpes")] == [3, 3, 2, 3]
    else:
        assert result.examples["selection"] < 30
        assert all(by_name[name].tried for name in methods if minutes == 10)


def test_what_the_choice_had_no_time_for_is_measured_on(config, clock):
    """Half a minute is for the model as it is on the selection: 15 of its 30 examples, at two positions."""
    write_examples(config.examples, [kv_example(i) for i in range(60)])
    out = mitigate(config.model_copy(update={"budget": "4m", "methods": ["reversed"]}))
    result = read_mitigate(out)
    assert result.examples["selection"] < 20 and 30 < result.examples["held_out"] == len(
        read_examples(out / "held_out.jsonl")
    )
    assert not set(result.chosen_by) & set(content_keys(read_examples(out / "held_out.jsonl")))
    assert 0.7 * 240 < result.seconds <= 1.1 * 240


def test_as_many_examples_are_asked_as_there_is_time_for():
    assert fit_examples(2, 30, 1.0, 10.0) == 12
    assert fit_examples(2, 30, 1.0, -5.0) == 2
    assert fit_examples(2, 30, 0.0, 0.0) == fit_examples(28, 30, 1.0, 2.0) == 30
    assert fit_examples(20, 30, 1.0, 4.0) == 20  # hardly more
    clock = Clock(100.0, lambda: 7.0)
    clock.add_earlier(20.0)
    assert (clock.seconds_spent, clock.seconds_left, clock.end_of_share(3)) == (20, 80, 30) and budget.CHOOSING == 0.5
    clock.add_earlier(40.0)
    assert (clock.seconds_spent, clock.seconds_left, clock.end_of_share(3)) == (60, 40, 60)


def test_the_best_of_prompts_and_of_models_are_measured():
    def found(gains):
        return [
            blank_outcome(MITIGATIONS[name]).model_copy(update={"tried": 1, "selection_gain": g})
            for name, g in gains.items()
        ]

    def picked(gains):
        return [each.name for each in pick_finalists(found(gains))]

    prompts = {"reversed": 1.0, "reordering": 9.0, "fewer": 5.0, "permutation": 4.0}
    models = {"lpes": -2.0, "yarn": 0.0, "ntk": -1.0, "linear": -3.0}
    assert picked(prompts | models) == ["reordering", "fewer", "yarn", "ntk"]
    assert picked(prompts | {"lpes": -2.0}) == ["reordering", "fewer", "permutation", "lpes"]
    assert picked(models) == ["yarn", "ntk", "lpes", "linear"]
    assert picked({"lpes": 3.0}) == ["lpes"]
    assert not pick_finalists(
        [MitigationOutcome(**blank_outcome(MITIGATIONS["lpes"]).model_dump() | {"reason": "over"})]
    )


@pytest.mark.full
def test_a_found_mitigation_is_applied_and_the_examples_that_chose_it_are_refused(config, tmp_path, model_folder):
    out = mitigate(config.model_copy(update={"methods": ["lpes", "ms-poe"]}))
    for name in ("lpes", "ms-poe"):
        applied = apply(ApplyConfig(model=config.model, found=out, mitigation=name, out=tmp_path / name))
        (found,) = [each for each in read_mitigate(out).found if each.name == name]
        in_config = read_config(applied)
        assert (CONFIG_KEY in in_config, MITIGATIONS_KEY in in_config) == (name == "lpes", name == "ms-poe")
        assert in_force(load_model(str(applied), "float32"))[name].model_dump(mode="json") == found.settings
        assert "refuses the model. Install posgap" in (applied / "README.md").read_text()
        asked = {"model": str(applied), "n_docs": 4, "max_new_tokens": 1, "positions": config.positions}
        with pytest.raises(PosgapError, match=f"^{applied}: .* {name} .* 6 "):
            sweep_model(SweepConfig(examples=config.examples, out=tmp_path / "refused", **asked))
        swept = sweep_model(SweepConfig(examples=out / "held_out.jsonl", out=tmp_path / f"{name}-swept", **asked))
        assert responses(swept) == responses(out / "sweeps" / name)
    assert responses(out / "sweeps" / "lpes") != responses(out / "sweeps" / "base")


def test_a_mitigation_of_given_settings_is_applied_to_the_model_it_suits(config, tmp_path):
    given = {"model": config.model, "mitigation": "lpes", "out": tmp_path / "applied"}
    apply(ApplyConfig(**given, mitigation_settings={"factors": [1.5, 2.0]}))
    assert read_config(tmp_path / "applied")[CONFIG_KEY] == [1.5, 2.0]
    shutil.copytree(config.model, trained := tmp_path / "trained")
    write_json(trained / "manifest.json", {"stage": "distill", "config": {"method": "r1"}})
    on_top = {"model": str(trained), "out": tmp_path / "on-top"}
    apply(ApplyConfig(**given | on_top, mitigation_settings={"factors": [1.5, 2.0]}))
    shutil.rmtree(trained)  # where the model goes, what it was made of is not at hand
    assert (method_of(tmp_path / "applied"), method_of(tmp_path / "on-top")) == ("mitigate", "r1 then mitigate")
    for wrong, said in (({"factors": [1.5]}, " 2 layers"), ({"fators": [1]}, "`factors`")):
        with pytest.raises(PosgapError, match=said):
            apply(ApplyConfig(**given | {"out": tmp_path / "wrong"}, mitigation_settings=wrong))
    with pytest.raises(BadOption, match="^reversed: .*--mitigation reversed"):
        apply(ApplyConfig(**given | {"mitigation": "reversed", "out": tmp_path / "wrong"}))


def test_a_folder_is_closed_to_loaders_that_do_not_know_what_it_has(config, tmp_path):
    given = {"model": config.model, "mitigation": "lpes", "mitigation_settings": {"factors": [1.5, 2.0]}}
    closed = apply(ApplyConfig(**given, out=tmp_path / "closed"))
    with pytest.raises(ValueError, match="pip_install_posgap"):
        AutoModelForCausalLM.from_pretrained(closed)
    assert "refuses the model" in (closed / "README.md").read_text()
    # What any loader serves is in a folder like others.
    linear = given | {"mitigation": "linear", "mitigation_settings": {"factor": 2}}
    assert not is_closed(read_json(apply(ApplyConfig(**linear, out=tmp_path / "linear")) / "config.json"))


def test_examples_of_the_evaluation_are_refused(config, tmp_path):
    write_examples(tmp_path / "evaluation.jsonl", [kv_example(11)])
    with pytest.raises(PosgapError, match=" 1 example "):
        mitigate(config.model_copy(update={"exclude": tmp_path / "evaluation.jsonl"}))


@pytest.mark.full
def test_only_what_is_for_certain_better_is_to_be_taken(config):
    result = read_mitigate(mitigate(config.model_copy(update={"methods": ["lpes", "reversed"]})))
    found = result.found

    def with_gain(name, mean, mean_ci95, gap, gap_ci95):
        (each,) = [each for each in found if each.name == name]
        better = {"mean": mean, "mean_ci95": mean_ci95, "gap": gap, "gap_ci95": gap_ci95}
        difference = each.measured.difference.model_copy(update=better)
        return each.model_copy(update={"measured": each.measured.model_copy(update={"difference": difference})})

    gains = with_gain("lpes", 5.0, (1.0, 9.0), -1.0, (-9.0, 9.0))
    flatter = with_gain("reversed", 0.0, (-2.0, 2.0), -9.0, (-12.0, -4.0))
    worse = with_gain("reversed", -5.0, (-9.0, -1.0), -9.0, (-12.0, -4.0))
    assert rank_helpful([flatter, gains]) == [gains, flatter] and rank_helpful([worse, gains]) == [gains]
    dear, cheap = (
        gains.model_copy(update={"measured": gains.measured.model_copy(update={"cost": None, "tokens": n})})
        for n in (3.0, 1.0)
    )
    assert rank_helpful([dear, cheap]) == [cheap, dear]
    assert not rank_helpful([flatter.model_copy(update={"order_free": True}), worse])
    # A model gets what is not for certain better only where that is asked for.
    unsure = with_gain("lpes", 1.0, (-2.0, 4.0), 0.0, (-5.0, 5.0))
    assert _best([unsure], "", "run", certain=False) is unsure and _best([gains], "", "run", certain=True) is gains
    with pytest.raises(PosgapError, match="--no-certain"):
        _best([unsure], "", "run", certain=True)
    # Half of the interval is three times the gain: nine times as many questions would tell.
    halves = {"selection": 20, "held_out": 30}
    advised = {}
    for each in (unsure, worse):
        advised[each.name] = result.model_copy(update={"found": [each], "examples": halves}).advice
    assert advised["lpes"] == (
        "30 questions are too few to tell whether lpes helps: it gained +1.0 points (-2.0 to +4.0), and about 450 "
        "questions in all would tell"
    )
    assert (
        advised["reversed"] == "none of the measured mitigations certainly helps (reversed): keep the model unchanged"
    )
    assert result.headline.startswith(f"The gap is {result.base_gap:.1f} points (")


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("30m", 1800), ("1.5h", 5400)])
def test_a_budget_is_a_time(text, seconds):
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["30", "0m", "m", "-3m", "3d"])
def test_what_is_no_time_is_no_budget(config, text):
    with pytest.raises(ValueError, match="\nbudget\n"):
        MitigateConfig(**json.loads(config.model_dump_json()) | {"budget": text})
