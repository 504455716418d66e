"""The documentation says what the program says, and its site has no link that leads nowhere."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
QUOTED = re.findall(r"^`(.+)`$", (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8"), re.MULTILINE)


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
