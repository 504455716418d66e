"""`plan sweep --model`: what is tried, what is proposed of it, and what is said."""

import json
import logging
import shlex

import pytest
from conftest import kv_example
from hypothesis import given
from hypothesis import strategies as st

from posgap.cli.main import main
from posgap.foundation.errors import PosgapError
from posgap.generation.endings import ResponseStream
from posgap.generation.generator import Sampling
from posgap.measurement import pilot as pilot_module
from posgap.measurement import power
from posgap.measurement.config import PlanConfig
from posgap.measurement.pilot import (
    ALL,
    FIRST,
    MAX_SECONDS,
    MAX_TRIALS,
    SHORT,
    Answer,
    Asking,
    Pilot,
    Search,
    Setting,
    Trial,
    following,
    pilot,
    search,
)
from posgap.measurement.probe import Response
from posgap.tasks.placements import Placement
from posgap.tasks.prompts import PromptBuilder
from posgap.tasks.reading import read_examples
from posgap.tasks.registry import TASKS


def run(capsys, *words) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stopped:
        main([str(word) for word in words])
    shown = capsys.readouterr()
    return stopped.value.code or 0, shown.out, shown.err


@pytest.mark.parametrize("setting", [Setting(4), Setting(7, SHORT)])
def test_what_is_tried_is_what_the_proposed_commands_make(capsys, tmp_path, monkeypatch, setting):
    monkeypatch.chdir(tmp_path)
    for command in setting.making(6):
        posgap, *words = shlex.split(command)
        assert posgap == "posgap" and run(capsys, *words)[0] == 0
    assert setting.examples(3) == read_examples(tmp_path / "kv.jsonl.gz")[:3]


@pytest.mark.parametrize(
    ("tried", "then"),
    [
        ({Setting(10): "too easy"}, Setting(20)),
        ({Setting(10): "too hard"}, Setting(10, SHORT)),
        ({Setting(10): "too easy", Setting(20): "too hard"}, Setting(15)),
        ({Setting(10): "too easy", Setting(11): "too hard"}, None),
        ({Setting(10): "too hard", Setting(10, SHORT): "too hard"}, Setting(5, SHORT)),
        ({Setting(10): "too hard", Setting(10, SHORT): "too easy"}, Setting(20, SHORT)),
        ({Setting(10, SHORT): "too hard", Setting(5, SHORT): "too easy"}, Setting(7, SHORT)),
        ({Setting(4, SHORT): "too hard"}, None),
    ],
)
def test_what_follows_is_harder_or_easier(tried, then):
    assert following(tried) == then


def trial(setting, share, seconds=1.0, examples=ALL, **said):
    """A trial in which the first so many of the answers are right."""
    n = examples * len(setting.placements)
    seen = {"text": "x", "cut": False, "echo": False, "answer_after": 0} | said
    answers = [
        Answer(i % len(setting.placements), Response(right=i < round(share * n), **seen), 100, 10, 7) for i in range(n)
    ]
    return Trial(setting, answers, seconds)


@given(
    st.integers(3, 60),
    st.sampled_from([1, 8, 30, 100]),
    st.sampled_from([0.5, 0.1, 0.9]),
    st.sampled_from([1e-3, 1.0, 100.0]),
    st.sampled_from([400, 10_000]),
)
def test_a_search_ends_and_never_asks_twice(n_docs, knee, at_knee, seconds, room):
    """Of a model that is right up to `knee` records, of whole UUIDs up to a third of that, and now and then there."""
    asked = []

    def share(setting):
        most = knee if setting.digits else knee // 3
        return at_knee if most <= setting.n_docs <= 1.5 * most else float(setting.n_docs < most)

    def attempt(setting, begin, end):
        asked.append((setting, begin))
        assert setting.n_docs * 20 <= room
        return trial(setting, share(setting), seconds, end - begin)

    found = search(Setting(n_docs), attempt, lambda setting: 20 * setting.n_docs, room, 100)
    assert len(set(asked)) == len(asked) and len(found.trials) <= MAX_TRIALS
    assert sum(each.seconds for each in found.trials) <= MAX_SECONDS + seconds
    eases = [each.ease for each in found.trials]
    assert "useful" not in eases[:-1]
    assert not (found.untried and "useful" in eases)
    assert found.trials or found.untried == Setting(n_docs)


def test_all_or_none_right_is_decided_by_the_first_questions():
    asked = []

    def attempt(setting, begin, end):
        asked.append((setting, begin, end))
        return trial(setting, {10: 1.0, 20: 0.4}[setting.n_docs], 2.0, end - begin)

    found = search(Setting(10), attempt, lambda setting: 100, 1000, 100)
    assert asked == [(Setting(10), 0, FIRST), (Setting(20), 0, FIRST), (Setting(20), FIRST, ALL)]
    assert found.trials[-1].seconds == 4.0 and found.first.seconds == 2.0
    assert len(found.trials[-1].answers) == ALL * 5 and len(found.first.answers) == FIRST * 5


def test_what_would_take_too_long_is_not_tried():
    found = search(Setting(10), lambda s, begin, end: trial(s, 1.0, 250.0, 2), lambda s: 10 * s.n_docs, 10_000, 100)
    assert [each.setting for each in found.trials] == [Setting(10)] and found.untried == Setting(20)
    assert "about 8 minutes more (--n-docs 20 begins with them)" in found.why


def test_right_answers_that_repeat_the_prompt_are_not_counted():
    copied = trial(Setting(5), 1.0, echo=True)
    assert copied.share == 0 and copied.ease == "too hard" and copied.right_by_position == [0] * 5
    assert "repeat the prompt" in copied.sentence(100)


def test_where_most_responses_are_cut_the_position_does_not_decide():
    assert [trial(Setting(5), 0.4, cut=cut).ease for cut in (True, False)] == ["too hard", "useful"]
    assert trial(Setting(5), 0.6, cut=True).ease == "useful"  # most go on after a right answer


def test_a_trial_in_words():
    said = trial(Setting(5, SHORT), 0.4).sentence(100)
    assert said == (
        "5 records with keys and values of 8 digits, 100 tokens a prompt: 10 of 25 right (at 1, 2, 3, 4, 5: "
        "2, 2, 2, 2, 2 of 5), useful"
    )


def made(share, limit=100, rates=None, untried=None, **said):
    last = trial(Setting(10, SHORT), share, 50.0, **said)
    return Pilot(Search([last], last, untried, "it is late"), limit, rates or {"float32": 20.0}, (9, 10))


def test_the_limit_of_tokens_follows_from_where_answers_stand():
    assert made(0.4).max_new_tokens == 100  # nothing is cut
    assert made(0.6, cut=True).max_new_tokens == 16  # right after 7 tokens, and a quarter more, in eights
    assert made(0.6, limit=12, cut=True).max_new_tokens == 12
    assert made(0.4, cut=True).max_new_tokens == 200  # most are cut before a right answer
    assert made(0.4, cut=True, echo=True).max_new_tokens == 100  # which more tokens would not mend


def test_what_is_said_of_a_model():
    assert made(0.4).lines() == [
        "it answers at once: right answers can be forced upon it",
        "float32 (--dtype auto): 20 tokens a second",
    ]
    _, enough, speed = made(0.6, rates={"bfloat16": 2000.0, "float32": 900.0}, cut=True).lines()
    assert "after at most 7 tokens, and 25 of 25 responses go on" in enough
    assert enough.endswith("--max-new-tokens 16 is enough")
    assert speed == "bfloat16 (--dtype auto): 2,000 tokens a second; float32: 900; 9 of 10 scores are the same in both"
    later, _ = made(0.4, text="The value of it is x", answer_after=4).lines()
    assert 'after words like "The value of it is' in later and "refuse it" in later
    *_, none = made(1.0, untried=Setting(20, SHORT)).lines()
    assert "20 records with keys and values of 8 digits were not tried: it is late" in none
    *_, none = made(0.0).lines()
    assert none.endswith("as a curve needs it")


def test_the_plan_rests_on_what_was_tried_and_says_how_long_it_takes(tmp_path, monkeypatch, caplog, capsys):
    monkeypatch.setattr(power, "pilot", lambda model, n_docs: made(0.6, cut=True))
    with caplog.at_level(logging.INFO):
        (folder := tmp_path / "a model").mkdir()
        needed = power.plan(PlanConfig(model=str(folder), detect=10, n_docs=12))
    by_hand = power.plan(PlanConfig(mean=60, n_docs=5, detect=10))
    assert needed == by_hand
    lines = "\n".join(caplog.messages)
    assert "assuming a mean of 60.0 over 5 placements" in lines
    minutes = needed["gap"] * 5 * 50 / 25 / 60  # two seconds a prompt
    assert f"{needed['gap']} examples (power 80 %), about {minutes:.0f} minutes for a model" in lines
    sweep = next(line for line in caplog.messages if line.startswith("posgap sweep"))
    assert f"--model '{folder}'" in sweep
    assert "--n-docs 10 --positions 1,3,6,8,10 --max-new-tokens 16 --out" in sweep
    assert f"--n-examples {needed['gap']} " in lines
    first, *_ = capsys.readouterr().out.splitlines()
    assert json.loads(first)["pilot"]["useful"] and json.loads(first)["examples"] == needed


def test_without_useful_questions_nothing_is_planned(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(power, "pilot", lambda model, n_docs: made(0.0))
    assert power.plan(PlanConfig(model=str(tmp_path))) == {}
    planned = json.loads(capsys.readouterr().out)
    assert planned["examples"] == {} and planned["pilot"]["trials"][0]["right"] == [0] * 5


class Scripted:
    """Writes after every prompt what it is told to."""

    def __init__(self, build, says):
        self.build, self.says = build, says

    def generate(self, groups, sampling):
        for which, group in enumerate(groups):
            for at in reversed(range(len(group))):  # in no order that anybody may count on
                stream = ResponseStream(self.build.tokenizer, {self.build.tokenizer.eos_token_id}, sampling)
                stream.read(self.says(which, at))
                yield which, at, stream.completion()


def test_a_trial_is_what_a_model_says_at_each_placement(tokenizer, monkeypatch):
    build = PromptBuilder(TASKS["kv"], tokenizer, 4096, 20)
    examples = [kv_example(i) for i in range(3)]
    monkeypatch.setattr(Setting, "examples", lambda self, count: examples[:count])
    setting = Setting(6)
    first = tokenizer.convert_tokens_to_ids("find") if "find" in tokenizer.get_vocab() else 5

    def says(which, at):
        gold = build.gold_response(examples[which], setting.placements[at])
        wrong = build.gold_response(examples[which + 1 if which < 2 else 0], setting.placements[at])
        return [first, first, *gold] if at % 2 else wrong

    tried = Asking(build, Scripted(build, says))(setting, 0, 3)
    assert [answer.at for answer in tried.answers] == [0, 1, 2, 3, 4] * 3
    assert tried.right_by_position == [0, 3, 0, 3, 0]
    assert {answer.right_after for answer in tried.answers} == {0, 3}
    assert tried.prompt_tokens == len(build(examples[0], Placement((1,), 6)))
    second = Asking(build, Scripted(build, lambda which, at: says(which + 1, at)))(setting, 1, 3)
    assert second.right_by_position == [0, 2, 0, 2, 0]
    assert Asking(build, Scripted(build, says)).needed(setting) == tried.prompt_tokens
    assert Sampling.of(build).max_new_tokens == 20


def test_an_untrained_model_is_tried_and_found_to_know_nothing(capsys, model_folder):
    code, out, shown = run(capsys, "plan", "sweep", "--model", model_folder, "--n-docs", 4, "--json")
    planned = json.loads(out)
    assert code == 0 and planned["examples"] == {} and not planned["pilot"]["useful"]
    assert [(each["n_docs"], each["digits"]) for each in planned["pilot"]["trials"]] == [(4, 0), (4, SHORT)]
    assert planned["pilot"]["tokens_per_second"].keys() == {"float32"}
    assert "no questions were found" in shown and "Traceback" not in shown


def test_both_precisions_are_timed_where_the_machine_would_choose_bfloat16(monkeypatch, model_folder):
    monkeypatch.setattr("posgap.generation.backends.generating_dtype", lambda dtype, config: "bfloat16")
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert list(pilot(str(model_folder), 3).rates) == ["bfloat16", "float32"]
    monkeypatch.setattr(pilot_module, "available_bytes", lambda: 1000)
    assert list(pilot(str(model_folder), 3).rates) == ["bfloat16"]


def test_what_cannot_be_tried_is_refused_in_a_line(capsys, tmp_path, model_folder):
    with pytest.raises(PosgapError, match="of whole UUIDs: their [0-9,]+ tokens do not fit.*lower n_docs"):
        pilot(str(model_folder), 400)
    for words, complaint in (
        (["--sweep", tmp_path, "--model", model_folder], "`sweep`: has the mean that a `model` is tried for"),
        (["--model", tmp_path / "none"], "none: no such"),
        (["--revision", "x"], "--revision"),
    ):
        code, _, shown = run(capsys, "plan", "sweep", *words)
        assert code == 2 and complaint in shown and "Traceback" not in shown
