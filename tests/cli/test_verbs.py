"""How much the command line asks of people: few commands, short help, and no option that nobody has a use for."""

import ast
import logging
import re
from pathlib import Path

import click
import pytest
from command_line import below, commands, fails, shown
from examples import kv_example
from places import ROOT

from posgap.cli.main import MAX_SHOWN, build, main
from posgap.data.reading import write_examples
from posgap.options.table import FIRST, VERBS


def verb(words: str, found: click.Group) -> click.Command:
    for word in words.split():
        found = below(found)[word]
    return found


def options(text: str) -> list[str]:
    """The long names of the options in a help text."""
    return re.findall(r"^  (?:-\w, )?(--[\w-]+)", text, re.MULTILINE)


def test_the_first_help_is_short_and_says_where_the_rest_is():
    first = shown("")
    named = re.findall(r"^  ([a-z-]+)  ", first.partition("\nCommands:\n")[2], re.MULTILINE)
    assert named == list(FIRST) and set(FIRST) <= set(below(build()))
    assert f"{len(below(build())) - len(FIRST)} more commands: posgap --help-all" in first
    assert max(map(len, first.splitlines())) <= 80 and len(first.splitlines()) < 30


def test_the_help_of_each_verb_shows_few_options_and_says_how_many_more_there_are():
    posgap = build()
    assert len(commands(posgap)) == len(VERBS)
    for words, each in VERBS.items():
        short, long = shown(words, of=posgap), shown(words, "--help-all", of=posgap)
        few, all_of_them = set(options(short)), set(options(long))
        assert len(few) <= MAX_SHOWN and {"--help", "--help-all", "--config"} <= few <= all_of_them, words
        params = [param for param in verb(words, posgap).params if isinstance(param, click.Option)]
        known = {name for param in params for name in param.opts if name.startswith("--")}
        assert all_of_them == known | few, words
        left = len(all_of_them) - len(few)
        assert (f"{left} more options: posgap {words} --help-all" in short) == (left > 0)
        assert "more options" not in long and {param.opts[0] for param in params if param.required} <= few, words
        assert each.config.__doc__, words


def test_help_says_what_an_argument_is():
    said = " ".join(shown("data make").split())
    assert said.count("rguments:") == 1 and "kv: synthetic UUID records" in said


def test_an_option_that_help_leaves_out_works_all_the_same(capsys, tmp_path):
    words = ["sweep", "--model", "m", "--examples", "e", "--out", tmp_path / "o"]
    assert "--timeout" not in options(shown("sweep"))
    assert "--timeout: " in fails(capsys, *words, "--timeout", -1)


def used() -> set[str]:
    """The names that tests give to options: flags in any text, keyword arguments, and keys of dictionaries or YAML."""
    found = set()
    for file in (ROOT / "tests").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.keyword) and node.arg:
                found.add(node.arg)
            elif isinstance(node, ast.Dict):
                found |= {key.value for key in node.keys if isinstance(key, ast.Constant)}
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                flags = re.findall(r"(?<![\w-])--([a-z][\w-]*)", node.value)
                found |= {name.replace("-", "_") for flag in flags for name in (flag, flag.removeprefix("no-"))}
                found |= set(re.findall(r"(?:^|[{,\s\"'])([a-z]\w*)\"?: ", node.value, re.MULTILINE))
    return found


ARGUMENTS = {("verify", "folders")}  # given without a name wherever they are


@pytest.mark.full
def test_every_option_is_used_in_a_test_and_described():
    """The reference, which is made of descriptions, names each."""
    names, bare = used(), []
    for typed, each in VERBS.items():
        for name, field in each.config.model_fields.items():
            if name not in names and (typed, name) not in ARGUMENTS:
                bare.append(f"{typed}: {name}")
            assert len((field.description or "").split()) >= 2, f"{typed}: {name}: say what it is for"
    assert not bare, f"{', '.join(bare)}: drop what nobody needs, or show in a test that it does what its help says"


@pytest.mark.parametrize(
    ("verb", "given", "place"),
    [
        ("sweep", {"model": "org/Name@v1.0"}, "runs/sweep-Name-v1.0"),
        ("check", {"model": "http://host/v1#served", "task": "qa"}, "runs/check-host-served-qa"),
        ("sweep", {"model": "http://me:key@host:8000/v1#org/m"}, "runs/sweep-host-8000-m"),
        ("mitigate", {"model": "m", "base_url": "http://[::1]:8000", "examples": "e"}, "runs/mitigate--1-8000-m-e"),
        ("check", {"model": "m", "examples": "s3://bucket/mine.jsonl.gz"}, "runs/check-m-mine"),
        ("compare", {"sweeps": ["runs/a", "b"]}, "runs/compare-a-b"),
        ("sweep", {"model": "m", "task": "kv", "examples": None}, "runs/sweep-m"),
        ("mitigate", {"model": "../m", "examples": "é t.jsonl"}, "runs/mitigate-m-é-t"),
    ],
)
def test_a_result_that_nobody_places_is_named_by_what_it_is_of(verb, given, place):
    assert VERBS[verb].config(out="x", **given).in_runs(verb) == Path(place)


def test_the_place_is_told_and_an_estimate_has_none(model_folder, tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    write_examples(tmp_path / "e.jsonl", [kv_example(number, 3) for number in range(2)])
    words = ["sweep", str(model_folder), "--examples", "e.jsonl", "--n-docs", "3", "--max-new-tokens", "2"]
    place = f"runs/sweep-{model_folder.name}-e"
    for more, written in (["--estimate"], False), ([], True):
        caplog.clear()
        with caplog.at_level(logging.INFO), pytest.raises(SystemExit, match="0"):
            main([*words, *more])
        assert (f"results go to {place}" in caplog.messages) == Path(place, "sweep.json").exists() == written
