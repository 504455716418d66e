"""The documentation says what the program says, and its site has no link that leads nowhere."""

import ast
import functools
import re
import shlex
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import click
import pytest

from posgap import cli
from posgap.errors import PosgapError

ROOT = Path(__file__).parents[1]
QUOTED = re.findall(r"^`(.+)`$", (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8"), re.MULTILINE)


PAGES = ["README.md", "CONTRIBUTING.md", *sorted(f"docs/{file.name}" for file in (ROOT / "docs").glob("*.md"))]


def shell_lines(text: str) -> list[str]:
    """What a reader would type: the lines of `sh` blocks, and those of `console` blocks that follow a prompt."""
    lines = []
    for kind, block in re.findall(r"^```(sh|console)\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        whole = block.replace("\\\n", " ").splitlines()
        lines += whole if kind == "sh" else [line.removeprefix("$ ") for line in whole if line.startswith("$ ")]
    return lines


def commands(text: str) -> list[list[str]]:
    """The arguments of each call of posgap on a page."""
    found = []
    for line in shell_lines(text):
        lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
        lexer.whitespace_split = True
        words = [*lexer, ";"]
        while words:
            end = next(i for i, word in enumerate(words) if set(word) <= set("|&;<>"))
            call, words = words[:end], words[end + 1 :]
            while call and re.match(r"\w+=", call[0]):  # variables of the call
                call = call[1:]
            if call and call[0].rpartition("/")[2] == "posgap":
                found.append(call[1:])
    return found


COMMANDS = functools.cache(cli.build)
CALLS = [(page, call) for page in PAGES for call in commands((ROOT / page).read_text(encoding="utf-8"))]


@pytest.mark.parametrize(("page", "call"), CALLS, ids=[f"{page} {' '.join(call)[:60]}" for page, call in CALLS])
def test_a_command_on_a_page_is_one_that_posgap_takes(page, call, monkeypatch):
    """Its verb, options and values: all but the work itself. `...` stands for what was said before on the page."""
    asked = []
    monkeypatch.setattr(cli, "_function", lambda target: asked.append)
    rest = [word for word, after in pairwise([*call, ""]) if "..." not in (word, after if word == "--param" else "")]
    try:
        COMMANDS().main(rest, prog_name="posgap", standalone_mode=False)
    except click.MissingParameter:
        assert "..." in call
    else:
        assert len(asked) == 1 or {"--help", "--version"} & set(call)


def test_commands_are_found_and_a_wrong_one_would_be_noticed(monkeypatch):
    text = "```sh\nA=1 posgap sweep \\\n  --n-docs 3 # so\npip install posgap\n```\n"
    text += "```console\n$ posgap x && posgap y\nposgap: z\n```"
    assert commands(text) == [["sweep", "--n-docs", "3"], ["x"], ["y"]]
    assert len(CALLS) > 60
    monkeypatch.setattr(cli, "_function", lambda target: lambda parsed: None)
    for wrong in (["sweep", "--ndocs", "3"], ["sweeep"], ["plan", "sweep", "--detect", "x"]):
        with pytest.raises((click.ClickException, PosgapError)):
            COMMANDS().main(wrong, prog_name="posgap", standalone_mode=False)


@pytest.fixture(scope="module")
def said() -> str:
    """All strings in posgap's code, what is filled into them left out."""
    texts = []
    for file in (ROOT / "src/posgap").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = [part.value if isinstance(part, ast.Constant) else "..." for part in node.values]
                texts.append("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.append(node.value)
    return "\n".join(texts)


@pytest.mark.parametrize("message", QUOTED)
def test_a_message_that_troubleshooting_explains_is_one_that_posgap_prints(said, message):
    pieces = [piece for piece in re.split(r"\s*\.\.\.\s*", message) if len(piece) > 6]
    assert pieces and [piece for piece in pieces if piece not in said] == []


def test_there_are_messages_to_look_for(said):
    assert len(QUOTED) > 10 and "a message that nothing prints" not in said


def test_the_site_is_built_without_a_broken_link(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    assert "--max-new-tokens" in (tmp_path / "site/commands.html").read_text(encoding="utf-8")
    for page in (tmp_path / "site").glob("*.html"):
        taken = re.findall(r"<(?:script|link|img)[^>]*(?:src|href)=\"?https?:[^>]*", page.read_text(encoding="utf-8"))
        assert taken == [], page.name  # it works without a network


def test_links_of_the_readme_lead_into_the_repository():
    """They are absolute, so that they hold on a package's page too."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    linked = re.findall(r"\]\(([^)]+)\)", text)
    assert len(linked) > 20 and [link for link in linked if not link.startswith("https://")] == []
    ours = [re.split(r"[?#]", link.partition("/blob/main/")[2])[0] for link in linked if "/posgap/posgap/" in link]
    assert [path for path in ours if not (ROOT / path).is_file()] == []
