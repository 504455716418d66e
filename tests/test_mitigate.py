"""`mitigate` and `apply`: what they try, on which examples, what they write, and what they refuse."""

import json
import logging
import shutil
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from conftest import kv_example
from test_probe import Saying
from transformers import AutoModelForCausalLM

from posgap.distillation.methods import method_of
from posgap.foundation.errors import PosgapError
from posgap.foundation.files import read_json, work_folder, write_json
from posgap.measurement.comparison import compare_sweeps
from posgap.measurement.config import SweepConfig
from posgap.measurement.sweeps import Evidence, read_predictions
from posgap.mitigating import trials
from posgap.mitigating.budget import SEARCHED, base_share, by_price, clearly_worse, first_share
from posgap.mitigating.config import ApplyConfig, MitigateConfig, seconds_of
from posgap.mitigating.finalists import best_for, in_order
from posgap.mitigating.report import PURPOSES, advice, described, read_mitigate
from posgap.mitigating.splits import split
from posgap.mitigating.trials import Tried
from posgap.mitigations.in_force import load_model
from posgap.mitigations.registry import MITIGATIONS
from posgap.mitigations.state import in_force
from posgap.models import CONFIG_KEY, MITIGATIONS_KEY
from posgap.models.closing import is_closed, read_config
from posgap.stages import mitigate as stage
from posgap.stages.apply import _best, apply
from posgap.stages.mitigate import mitigate
from posgap.stages.sweep import sweep
from posgap.tasks.content import contents
from posgap.tasks.prompts import PromptBuilder
from posgap.tasks.reading import read_examples, write_examples
from posgap.tasks.registry import TASKS


@pytest.fixture(scope="module")
def model_folder(values_folder):
    return values_folder


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    return tmp_path_factory.mktemp("mlflow") / "mlflow.db"


@pytest.fixture(autouse=True)
def own_tracking(own_tracking, database, monkeypatch):
    """These tests share a database, which takes seconds to make."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{database}")


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
        generations=1,
        population=3,
        finalists=2,
        budget="1h",
    )


def responses(swept) -> list[str]:
    """What a model said in a sweep, the examples in their order, each at all placements."""
    return [row["response"] for row in read_predictions(swept)]


def test_examples_are_split_by_what_they_are(tmp_path):
    examples = [kv_example(i) for i in range(20)]
    parts = split(examples)
    assert list(map(len, parts)) == [5, 5, 10]
    names = [set(contents(part)) for part in parts]
    assert len(names[0] | names[1] | names[2]) == 20
    renamed = [each.model_copy(update={"id": f"other-{each.id}"}) for each in reversed(examples)]
    assert [contents(part) for part in split(renamed)] == [contents(part) for part in parts]
    assert [contents(part) for part in split([*examples, *renamed])] == [contents(part) for part in parts]
    # Of two with the same content the first stays.
    assert split([*examples, *renamed]) == parts
    assert list(map(len, split(examples, search=3, selection=15))) == [3, 15, 2]
    with pytest.raises(PosgapError, match="20 different examples: 3 to search on, 16 to select on and 1 to measure on"):
        split(examples, search=3, selection=16)


def test_what_suits_a_model_is_tried_chosen_and_measured(config, tmp_path, model_folder):
    out = mitigate(config)
    result = read_mitigate(out)
    assert result.examples == {"search": 3, "selection": 3, "held_out": 6}
    held_out = read_examples(out / "held_out.jsonl")
    assert not set(contents(held_out)) & set(result.chosen_by) and len(result.chosen_by) == 6
    by_name = {each.name: each for each in result.found}
    assert by_name.keys() == {"lpes", "reversed", "ms-poe"}
    assert by_name["lpes"].tried > 3 and by_name["reversed"].tried == 1
    assert by_name["lpes"].curve and not by_name["ms-poe"].curve
    assert any(each.cost == "nothing" for each in result.measured) and len(result.measured) >= 2
    left_out = [each for each in result.found if not each.measured]
    assert all("not the best for any purpose, nor among the best 2" in each.reason for each in left_out)

    base = Evidence(out / "sweeps" / "base")
    sweeps = [Evidence(out / "sweeps" / found.name) for found in result.measured]
    together = compare_sweeps([base, *sweeps], together=True).differences
    for found, swept, difference in zip(result.measured, sweeps, together):
        assert difference == found.measured.difference
        assert found.measured.mean == swept.sweep.mean and found.measured.cost.prefill > 0
        is_of_model = found.name != "reversed"
        assert (swept.sweep.model_digest != base.sweep.model_digest) == is_of_model
        assert (swept.sweep.mitigation is None) == is_of_model
        assert (f"--mitigation {found.name}" in found.command) == is_of_model == (not found.code)
    page = (out / "mitigate.html").read_text()
    assert "<svg" in page and all(found.name in page for found in result.found)
    assert (out / "mitigate.png").read_bytes().startswith(b"\x89PNG")


def test_the_model_as_it_is_answers_as_a_sweep_of_it_does(config, tmp_path):
    out = mitigate(config.model_copy(update={"methods": ["reversed"]}))
    swept = sweep(
        SweepConfig(
            examples=out / "held_out.jsonl",
            model=config.model,
            out=tmp_path / "sweep",
            n_docs=4,
            max_new_tokens=1,
            positions=config.positions,
        )
    )
    assert responses(swept) == responses(out / "sweeps" / "base")
    assert read_mitigate(out).base_mean == Evidence(swept).sweep.mean


def test_what_the_model_says_as_it_is_is_looked_at_once(config, tmp_path, tokenizer, caplog):
    build = PromptBuilder(TASKS["kv"], tokenizer, 512, 20)
    asking = trials.Asking(None, build, build.task.placements(4, ["1", "4"]), lambda *_: 0.0, config, Saying("well"))
    parts = {"search": [kv_example(i) for i in range(6)], "selection": [kv_example(i) for i in range(6, 12)]}
    with caplog.at_level(logging.INFO):
        tries = trials.Trials(asking, parts, tmp_path / "state.json", "these")
        assert [tries(part, trials.BASE).accuracy for part in parts] == [[0, 0]] * 2
    (line,) = [message for message in caplog.messages if "the first answers" in message]
    assert "8 of 8 responses are cut at 20 tokens" in line and "--max-new-tokens 40" in line


def test_what_was_tried_is_not_tried_again(config, monkeypatch):
    measured = trials.Trials._scores
    asked, resumed = [], []

    def interrupted(self, part, name, settings, until):
        asked.append((part, name, settings))
        if len(asked) == 4 and not resumed:
            raise KeyboardInterrupt
        return measured(self, part, name, settings, until)

    monkeypatch.setattr(trials.Trials, "_scores", interrupted)
    with pytest.raises(KeyboardInterrupt):
        mitigate(config)
    kept = read_json(work_folder(config.out) / "tried.json")
    assert [row["name"] for row in kept["tried"]] == ["base", "reversed", "lpes"] and kept["seconds"] > 0
    before = asked[:3]
    resumed.append(True)
    mitigate(config)
    assert len(asked) > 4 and not [each for each in asked[4:] if each in before]


def test_it_stops_at_the_budget_with_the_model_as_it_is_and_one_mitigation(config):
    result = read_mitigate(mitigate(config.model_copy(update={"budget": "0.001s", "methods": ["reversed", "lpes"]})))
    assert [each.name for each in result.measured] == ["reversed"]
    (left_out,) = [each for each in result.found if not each.measured]
    assert left_out.reason.startswith("the budget was over before it was tried: it takes about") and not left_out.tried
    assert result.examples == {"search": 2, "selection": 2, "held_out": 2}  # as few as an interval needs


class Timed:
    """A generator that takes a second for each answer, by a clock of its own, as often as the mitigation's price."""

    def __init__(self, clock, generator, price):
        self.clock, self.generator, self.price = clock, generator, price

    def generate(self, groups, sampling):
        for answered in self.generator.generate(groups, sampling):
            self.clock[0] += self.price
            yield answered

    def __getattr__(self, name):
        return getattr(self.generator, name)


@pytest.fixture
def clock(monkeypatch):
    """Seconds that pass only as answers come."""
    now, under = [0.0], trials.Asking.under

    @contextmanager
    def timed(self, name, settings):
        with under(self, name, settings) as generator:
            yield Timed(now, generator, 1 if name == trials.BASE else MITIGATIONS[name].price)

    monkeypatch.setattr(trials.Asking, "under", timed)
    monkeypatch.setattr(trials.Clock.__init__, "__defaults__", (0.0, lambda: now[0]))
    return now


@pytest.mark.parametrize(("minutes", "free"), [(10, True), (3, False)])
def test_a_slow_model_is_asked_less_so_that_the_budget_is_kept(config, clock, minutes, free):
    """A second an answer: all examples by the model alone would take two minutes, and by all methods half an hour."""
    write_examples(config.examples, [kv_example(i) for i in range(60)])
    methods = ["permutation", "lpes", "yarn", "linear", "ntk", "reordering", "reversed", "ms-poe"]
    changes = {"budget": f"{minutes}m", "methods": methods}
    result = read_mitigate(mitigate(config.model_copy(update=changes)))
    assert 0.6 * 60 * minutes < result.seconds <= 1.1 * 60 * minutes
    assert result.seconds == pytest.approx(clock[0], abs=60)
    by_name = {each.name: each for each in result.found}
    assert result.measured and result.examples["held_out"] >= 2
    for name in ("yarn", "linear", "ntk", "reordering", "reversed"):  # what costs nothing is tried first
        assert by_name[name].tried or not free
    assert result.examples["search"] < 15
    assert all(each.measured or each.reason for each in result.found)


def test_the_cheap_are_tried_first_and_those_that_search_after_their_equals():
    order = [each.name for each in by_price(MITIGATIONS)]
    assert set(order[:6]) == {"reversed", "reordering", "fewer", "linear", "ntk", "yarn"}
    assert order[6] == "lpes" and order[-1] == "permutation"
    assert sorted(order) == sorted(each.name for each in MITIGATIONS)


@pytest.mark.parametrize(
    ("names", "left_out"),
    [
        ([each.name for each in MITIGATIONS], {"permutation"}),
        (["reversed"], set()),
        (["permutation"], set()),
    ],
)
def test_a_budget_s_search_reaches_as_many_mitigations_as_it_can(names, left_out):
    """Each tries settings while they fit into its share, and one in any case; all take what their prices say."""
    mitigations = by_price(MITIGATIONS[name] for name in names)
    seconds = base_share(mitigations)  # of a budget of one
    spent, tried = seconds, dict[str, int]()
    for number, each in enumerate(mitigations):
        left, takes = SEARCHED - spent, each.price * seconds
        share = first_share(mitigations[number:], seconds, left)
        assert 0 < share <= left + 1e-9
        if takes <= left + 1e-9:
            assert share >= takes - 1e-9  # it does not take the time of those after it
            tried[each.name] = int(share / takes + 1e-9)
            spent += tried[each.name] * takes
    assert {*names} - {*tried} == left_out and spent <= SEARCHED + 1e-9
    assert tried[mitigations[0].name] == 1 or len(names) == 1


def test_what_is_no_worse_is_seldom_given_up_however_often_one_looks():
    """At most one in twenty over 100 looks, where harm is as frequent as help; what only harms is seen after seven."""
    rng, falsely = np.random.default_rng(0), 0
    for _ in range(200):
        harm = np.cumsum(rng.random(100) < 0.5)
        falsely += any(clearly_worse(int(bad), n - int(bad)) for n, bad in enumerate(harm, 1))
    assert falsely <= 10
    assert [clearly_worse(harmed, 0) for harmed in (0, 6, 7)] == [False, False, True]
    assert not clearly_worse(3, 30) and clearly_worse(30, 3)


def test_what_is_clearly_worse_is_given_up_early_and_never_measured(config, monkeypatch):
    """The model is right as it is, and wrong under one mitigation; the other leaves it as it is."""
    write_examples(config.examples, [kv_example(i) for i in range(40)])

    @contextmanager
    def under(self, name, settings):
        texts = [f" {i:x}" for i in range(16)] if name != "linear" else ["?"]
        yield Saying(" ".join(texts), cut=False)

    monkeypatch.setattr(trials.Asking, "under", under)
    monkeypatch.setattr(stage, "cost", lambda *_: None)
    result = read_mitigate(mitigate(config.model_copy(update={"methods": ["linear", "ntk"], "metric": "contains_any"})))
    assert [each.name for each in result.measured] == ["ntk"]
    (worse,) = [each for each in result.found if not each.measured]
    assert worse.reason == (
        "clearly worse than the model as it is: of the 7 questions asked, 7 were answered worse and 0 better; 13 more "
        "were not asked"
    )
    assert worse.tried == 3 and worse.search_gain is None
    alone = config.out.with_name("alone")
    alone = read_mitigate(
        mitigate(config.model_copy(update={"methods": ["linear"], "out": alone, "metric": "contains_any"}))
    )
    assert not alone.measured and alone.headline.startswith("Of all that were tried, nothing is")


def test_a_found_mitigation_is_applied_and_the_examples_that_chose_it_are_refused(config, tmp_path, model_folder):
    out = mitigate(config.model_copy(update={"methods": ["lpes", "ms-poe"]}))
    for name in ("lpes", "ms-poe"):
        applied = apply(ApplyConfig(model=config.model, found=out, mitigation=name, out=tmp_path / name))
        (found,) = [each for each in read_mitigate(out).found if each.name == name]
        in_config = read_config(applied)
        assert CONFIG_KEY not in in_config and (MITIGATIONS_KEY in in_config) == (name == "ms-poe")
        if name == "lpes":  # the factors found are alike, which is written as transformers itself reads it
            assert {in_config["rope_parameters"]["factor"]} == set(found.settings["factors"])
            assert in_config["rope_parameters"]["rope_type"] == "linear" and not is_closed(in_config)
        else:
            assert in_force(load_model(str(applied), "float32"))[name].model_dump(mode="json") == found.settings
            assert "refuses the model. Install posgap" in (applied / "README.md").read_text()
        asked = {"model": str(applied), "n_docs": 4, "max_new_tokens": 1, "positions": config.positions}
        with pytest.raises(PosgapError, match="were chosen by 6 of these examples"):
            sweep(SweepConfig(examples=config.examples, out=tmp_path / "refused", **asked))
        swept = sweep(SweepConfig(examples=out / "held_out.jsonl", out=tmp_path / f"{name}-swept", **asked))
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
    for wrong, said in (({"factors": [1.5]}, "layers"), ({"fators": [1]}, "`factors` is missing")):
        with pytest.raises(PosgapError, match=said):
            apply(ApplyConfig(**given | {"out": tmp_path / "wrong"}, mitigation_settings=wrong))
    with pytest.raises(PosgapError, match="works on what is asked"):
        apply(ApplyConfig(**given | {"mitigation": "reversed", "out": tmp_path / "wrong"}))


def test_a_plain_folder_is_open_to_loaders_that_do_not_know_what_it_has(config, tmp_path, caplog):
    given = {"model": config.model, "mitigation": "lpes", "mitigation_settings": {"factors": [1.5, 2.0]}}
    closed = apply(ApplyConfig(**given, out=tmp_path / "closed"))
    with pytest.raises(ValueError, match="pip_install_posgap"):
        AutoModelForCausalLM.from_pretrained(closed)
    with caplog.at_level(logging.WARNING):
        plain = apply(ApplyConfig(**given, plain=True, out=tmp_path / "plain"))
    assert "load it without lpes, and say nothing" in caplog.text
    assert read_json(plain / "config.json")[CONFIG_KEY] == [1.5, 2.0]
    card = (plain / "README.md").read_text()
    assert "loads the model without it and without a word" in card and "refuses the model" not in card
    ids = torch.arange(3, 11)[None]
    said, asked = AutoModelForCausalLM.from_pretrained(plain), load_model(config.model, "float32")
    with torch.no_grad():
        torch.testing.assert_close(said(ids).logits, asked(ids).logits)  # without the factors
        torch.testing.assert_close(
            load_model(str(plain), "float32")(ids).logits, load_model(str(closed), "float32")(ids).logits
        )
    # What any loader serves has no closed folder to open.
    linear = given | {"mitigation": "linear", "mitigation_settings": {"factor": 2}}
    assert not is_closed(read_json(apply(ApplyConfig(**linear, plain=True, out=tmp_path / "linear")) / "config.json"))


def test_examples_of_the_evaluation_are_refused(config, tmp_path):
    write_examples(tmp_path / "evaluation.jsonl", [kv_example(11)])
    with pytest.raises(PosgapError, match="1 examples are evaluation examples too"):
        mitigate(config.model_copy(update={"exclude": tmp_path / "evaluation.jsonl"}))


def test_advice_names_only_what_is_for_certain_better(config):
    out = mitigate(config.model_copy(update={"methods": ["lpes", "reversed"], "finalists": 2}))
    found = read_mitigate(out).found

    def with_gain(name, mean, mean_ci95, gap, gap_ci95):
        (each,) = [each for each in found if each.name == name]
        better = {"mean": mean, "mean_ci95": mean_ci95, "gap": gap, "gap_ci95": gap_ci95}
        difference = each.measured.difference.model_copy(update=better)
        return each.model_copy(update={"measured": each.measured.model_copy(update={"difference": difference})})

    gains = with_gain("lpes", 5.0, (1.0, 9.0), -1.0, (-9.0, 9.0))
    flatter = with_gain("reversed", 0.0, (-2.0, 2.0), -9.0, (-12.0, -4.0))
    worse = with_gain("reversed", -5.0, (-9.0, -1.0), -9.0, (-12.0, -4.0))
    taken = {each.purpose: each.name for each in advice([gains, flatter])}
    assert taken["the highest mean"] == "lpes" and taken["the smallest gap"] == "reversed"
    assert taken["an endpoint that only takes prompts"] == "reversed" and taken["served by vLLM"] == "lpes"
    assert taken["nothing can be installed where it is served"] == ""
    taken = {each.purpose: each for each in advice([gains, worse])}
    assert taken["the highest mean"].name == "lpes" and taken["the smallest gap"].name == ""
    assert "(lpes, reversed) nothing has for certain a smaller gap" in taken["the smallest gap"].why
    assert "(reversed) nothing is for certain better" in taken["an endpoint that only takes prompts"].why
    # A model gets what is not for certain better only where that is asked for.
    unsure = with_gain("lpes", 1.0, (-2.0, 4.0), 0.0, (-5.0, 5.0))
    assert _best([unsure], "", "run", certain=False) is unsure and _best([gains], "", "run", certain=True) is gains
    with pytest.raises(PosgapError, match="--no-certain"):
        _best([unsure], "", "run", certain=True)


def test_the_best_for_every_purpose_is_a_finalist():
    accuracies = {
        "ms-poe-static": [90.0, 80.0],
        "permutation": [95.0, 50.0],
        "yarn": [50.0, 30.0],
        "lpes": [60.0, 40.0],
        "linear": [2.0, 2.0],
        "ms-poe": [90.0, 60.0],
    }
    rows = {
        name: Tried(name=name, settings={}, part="selection", accuracy=accuracy, seconds=1.0)
        for name, accuracy in accuracies.items()
    }
    found = {name: described(MITIGATIONS[name]) for name in rows}

    def fitness(row, by):
        return np.mean(row.accuracy) - (np.ptp(row.accuracy) if by == "mean_minus_gap" else 0)

    # The highest mean, one call, nothing installed, an endpoint; the smallest gap is the first's, vLLM's the last's.
    chosen = ["ms-poe-static", "lpes", "yarn", "permutation"]
    assert best_for(PURPOSES, rows, found, fitness) == chosen
    assert in_order(rows, found, fitness) == [*chosen, "ms-poe", "linear"]
    assert best_for(PURPOSES[:2], {"ms-poe": rows["ms-poe"]}, found, fitness) == ["ms-poe"]
    rows["ms-poe"] = rows["ms-poe"].model_copy(update={"accuracy": [76.0, 76.0]})
    assert best_for(PURPOSES, rows, found, fitness) == ["ms-poe-static", "lpes", "ms-poe", "yarn", "permutation"]


def test_only_layers_factors_lie_on_a_curve():
    def curve(name, **settings):
        return MITIGATIONS[name].curve(MITIGATIONS[name].settings(**settings))

    assert curve("lpes", factors=[1.5, 1.5]) == "one factor for all layers"
    assert "bezier curve with 4 control points" in curve("lpes", factors=[1.5, 1.2])
    assert not curve("ms-poe-static", factors=[[1.5, 1.2]]) and not curve("reversed")


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("30m", 1800), ("1.5h", 5400)])
def test_a_budget_is_a_time(text, seconds):
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["30", "0m", "m", "-3m", "3d"])
def test_what_is_no_time_is_no_budget(config, text):
    with pytest.raises(ValueError, match="must be a time like 90s, 30m or 2h"):
        MitigateConfig(**json.loads(config.model_dump_json()) | {"budget": text})
