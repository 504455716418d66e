"""How much the command line asks of people: few commands, short help, and no option that nobody has a use for."""

import re

import click
import pytest
from click.testing import CliRunner
from conftest import ROOT
from test_cli import commands, fails

from posgap.cli.main import MAX_SHOWN, build
from posgap.cli.verbs import VERBS

MAX_COMMANDS = 53  # groups included; 50 is the aim
GENERATED = {"reference.md"}  # pages that name every option, whether anybody has a use for it or not


def groups(group: click.Group) -> list[click.Group]:
    below = [each for each in group.commands.values() if isinstance(each, click.Group)]
    return below + [each for one in below for each in groups(one)]


def verb(words: str) -> click.Command:
    found = build()
    for word in words.split():
        found = found.commands[word]
    return found


def shown(words: str, *more: str) -> str:
    """What a verb prints for `--help`, or for another option."""
    return CliRunner().invoke(build(), [*words.split(), *(more or ["--help"])], prog_name="posgap").output


def options(text: str) -> list[str]:
    """The long names of the options in a help text."""
    return re.findall(r"^  (?:-\w, )?(--[\w-]+)", text, re.MULTILINE)


def test_there_are_few_commands():
    assert len(commands(build())) == len(VERBS)
    assert len(VERBS) + len(groups(build())) <= MAX_COMMANDS


@pytest.mark.parametrize("words", VERBS)
def test_help_shows_few_options_and_says_how_many_more_there_are(words):
    short, long = shown(words), shown(words, "--help-all")
    few, all_of_them = options(short), options(long)
    assert len(few) <= MAX_SHOWN and {"--help", "--help-all", "--config"} <= set(few)
    known = {name for each in verb(words).params if isinstance(each, click.Option) for name in each.opts[-1:]}
    assert set(all_of_them) == known - {"-q"} | {"--help", "--help-all", *few}
    left = len(all_of_them) - len(few)
    assert (f"{left} more options: posgap {words} --help-all" in short) == (left > 0)
    assert "more options" not in long and set(few) <= set(all_of_them)
    required = {each.opts[0] for each in verb(words).params if isinstance(each, click.Option) and each.required}
    assert required <= set(few)


def test_help_says_what_an_argument_is():
    said = " ".join(shown("data make").split())
    assert "Arguments:" in said and "kv: synthetic UUID records" in said


def test_an_option_that_help_leaves_out_works_all_the_same(capsys, tmp_path):
    words = ["sweep", "--model", "m", "--examples", "e", "--out", tmp_path / "o"]
    assert "--retries" not in options(shown("sweep"))
    assert "--retries: Input should be greater than or equal to 0" in fails(capsys, *words, "--retries", -1)


def named() -> str:
    """All that tests and guides say."""
    pages = [page for page in (ROOT / "docs").glob("*.md") if page.name not in GENERATED]
    files = [*pages, ROOT / "README.md", *(ROOT / "tests").rglob("*.py")]
    return "\n".join(file.read_text(encoding="utf-8", errors="replace") for file in files)


def test_every_option_is_named_in_a_guide_or_used_in_a_test():
    text = named()
    words = {
        word for name in re.findall(r"(?<![\w-])--([a-z][\w-]*)", text) for word in (name, name.removeprefix("no-"))
    }
    fields = {name for pair in re.findall(r"""\b(\w+)=|["'`](\w+)["'`]""", text) for name in pair}
    words |= {name.replace("_", "-") for name in fields}
    for typed, each in VERBS.items():
        nowhere = [name for name in each.config.model_fields if name.replace("_", "-") not in words]
        assert not nowhere, f"{typed}: {', '.join(nowhere)}: drop what no documented use needs, or use it in a test"
