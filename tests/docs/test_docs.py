"""The documentation says what the program says, and its site has no link that leads nowhere."""

import ast
import functools
import json
import re
import runpy
import shlex
import subprocess
import sys
from datetime import date
from itertools import pairwise
from pathlib import Path

import click
import pytest
from chromium import browser, program
from markdown.extensions.toc import slugify

from posgap.cli import main as cli
from posgap.foundation.errors import PosgapError
from posgap.foundation.files import read_json
from posgap.options.preflight import PreflightConfig
from posgap.options.table import VERBS
from posgap.pipelines import forms
from posgap.pipelines.forms import WatchFormConfig

ROOT = Path(__file__).parents[2]
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
CALLS += [("--help", call) for words in VERBS for call in commands(f"```sh\n{cli.example_command(words)}\n```")]


def complaint(call: list[str], asked: list) -> str:
    """What is wrong with a call: its verb, options and values, all but the work itself, which is put into `asked`.
    `...` stands for what was said before on the page."""
    asked.clear()
    rest = [word for word, after in pairwise([*call, ""]) if "..." not in (word, after if word == "--param" else "")]
    try:
        COMMANDS().main(rest, prog_name="posgap", standalone_mode=False)
    except click.MissingParameter as error:
        return "" if "..." in call else str(error)
    except (click.ClickException, PosgapError) as error:
        return str(error)
    return "" if len(asked) == 1 or {"--help", "--version"} & set(call) else "no work"


def test_every_command_on_a_page_is_one_that_posgap_takes(monkeypatch, tmp_path):
    asked = []
    (tmp_path / "policy.yaml").write_text("guards: {longer: {n_docs: 40}}\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli, "_work_of", lambda verb: asked.append)
    wrong = [(page, " ".join(call), complaint(call, asked)) for page, call in CALLS]
    assert [each for each in wrong if each[2]] == []


def test_commands_are_found_and_a_wrong_one_would_be_noticed(monkeypatch):
    text = "```sh\nA=1 posgap sweep \\\n  --n-docs 3 # so\npip install posgap\n```\n"
    text += "```console\n$ posgap x && posgap y\nposgap: z\n```"
    assert commands(text) == [["sweep", "--n-docs", "3"], ["x"], ["y"]]
    assert len(CALLS) > len(VERBS)
    monkeypatch.setattr(cli, "_work_of", lambda verb: lambda parsed: None)
    for wrong in (["sweep", "--ndocs", "3"], ["sweeep"], ["plan", "sweep", "--detect", "x"], ["sweep"]):
        assert complaint(wrong, [])


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


def test_every_message_that_troubleshooting_explains_is_one_that_posgap_prints(said):
    assert QUOTED and "a message that nothing prints" not in said
    for message in QUOTED:
        pieces = [piece for piece in re.split(r"\s*\.\.\.:?\s*", message) if len(piece) > 6]
        assert pieces and [piece for piece in pieces if piece not in said] == []


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The site's folder, built as `make docs` builds it."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    return folder


@pytest.mark.full
def test_the_site_is_built_without_a_broken_link(site):
    assert "--max-new-tokens" in (site / "commands.html").read_text(encoding="utf-8")
    assert "<td>qwen3_moe</td>" in (site / "families.html").read_text(encoding="utf-8")
    for page in site.glob("*.html"):
        taken = re.findall(r"<(?:script|link|img)[^>]*(?:src|href)=\"?https?:[^>]*", page.read_text(encoding="utf-8"))
        assert taken == [], page.name  # it works without a network


@pytest.mark.nightly
@pytest.mark.skipif(not program(), reason="there is no Chromium on PATH")
def test_the_site_fits_a_phone_and_can_be_searched_from_a_disk(site):
    too_wide = """[...document.querySelectorAll('article *')].filter((element) => {
        if (element.getBoundingClientRect().right <= innerWidth + 1) return false;
        for (let above = element.parentElement; above !== document.body; above = above.parentElement)
            if (getComputedStyle(above).overflowX !== 'visible') return false;
        return true;
    }).map((element) => element.outerHTML.slice(0, 80))"""
    with browser() as page:
        for file in sorted(set(site.glob("*.html")) - {site / "404.html"}):  # which a server alone can show
            page.open(file.as_uri(), 390, 844)
            assert page.js(too_wide) == [], file.name
        page.open((site / "index.html").as_uri())
        page.js("document.getElementById('__search').click()")
        page.js(
            "(() => { const field = document.querySelector('input.md-search__input'); field.value = 'gold';"
            "field.dispatchEvent(new Event('input')); field.dispatchEvent(new KeyboardEvent('keyup')); })()"
        )
        page.wait("document.querySelectorAll('.md-search-result__item').length > 3")
        assert [address for address in page.asked_for if not address.startswith(("file:", "data:"))] == []
        assert page.complaints == []


def test_links_of_the_readme_lead_into_the_repository():
    """They are relative, so that they hold in any checkout; a package's are made absolute (test_packaging)."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    linked = [link for link in re.findall(r"\]\(([^)]+)\)", text) if not link.startswith("https://")]
    assert len(linked) > 20 and [link for link in linked if not (ROOT / link.partition("#")[0]).is_file()] == []
    assert "github.com/posgap" not in text


def test_links_out_of_the_docs_hold_on_the_site_or_are_names_of_files():
    outside = runpy.run_path(str(ROOT / "docs" / "hooks.py"))["outside"]
    page = "See [the table](../tests/a.md#b), [`b.py`](../b.py), [c/d](../c/d) and [gate](gate.md#x)."
    assert outside(page, None) == "See the table (`tests/a.md`), `b.py`, c/d and [gate](gate.md#x)."
    assert "[the table](https://host/me/posgap/blob/main/tests/a.md#b)" in outside(page, "https://host/me/posgap")


def test_nobody_is_told_to_install_what_no_index_has():
    shown = [ROOT / name for name in (*PAGES, "CHANGELOG.md")] + list((ROOT / "src").rglob("*.py"))
    assert [
        str(file) for file in shown if re.search(r"pip install posgap(?!-)", file.read_text(encoding="utf-8"))
    ] == []


def test_every_figure_has_its_command_and_its_place_in_the_page(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from report import RESULTS, listed

    text = RESULTS.read_text(encoding="utf-8")
    places = re.findall(r"^\| \[([\w-]+)\]\(#([\w-]+)\) \|", text, re.MULTILINE)
    assert [name for name, _ in places] == list(listed()) and len(places) > 6
    heads = [slugify(head.replace("`", ""), "-") for head in re.findall(r"^#{2,3} (.+)$", text, re.MULTILINE)]
    assert {place for _, place in places} <= set(heads)
    costs = text.partition("## Time and memory")[2].partition("\n## ")[0]
    measured = re.findall(r"^\| ([\w-]+) \| .+ \| .+ \|$", costs, re.MULTILINE)
    assert {name for name, place in places if place == "time-and-memory"} <= set(measured)
    for cells in listed().values():
        for script, *options in map(str.split, cells["command"].strip("`").split(" && ")):
            code = (ROOT / "benchmarks" / script).read_text(encoding="utf-8")
            assert [option for option in options if option.startswith("--") and f'"{option}"' not in code] == []


def test_every_benchmark_can_be_run_quickly_or_says_why_not(monkeypatch):
    """`make benchmarks` runs them each night."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from results import EXEMPT

    scripts = {file.stem: file.read_text(encoding="utf-8") for file in (ROOT / "benchmarks").glob("*.py")}
    assert {name for name, code in scripts.items() if 'parser.add_argument("--quick"' not in code} <= {*EXEMPT}
    assert EXEMPT.keys() < scripts.keys() and all(EXEMPT.values())


def test_figures_that_are_measured_again_are_written_with_the_day_and_the_machine(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import report

    monkeypatch.setattr(report, "ROOT", tmp_path)
    monkeypatch.setattr(report, "WRITTEN", tmp_path / "results")
    report.write_section("one", "## One")
    written = (tmp_path / "results/one.md").read_text(encoding="utf-8")
    assert written == f"{date.today()}, {report.machine()}\n\n## One\n"


@pytest.fixture
def tables(monkeypatch):
    """The script that writes the tables of the pages."""
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    import tables

    return tables


@pytest.mark.parametrize(("page", "config"), [("form", PreflightConfig), ("watch-form", WatchFormConfig)])
def test_the_forms_tables_say_what_the_forms_say(page, config, tables):
    rows = dict(re.findall(r"^\| `(\w+)` +\|.*?\| (.*?) +\|$", tables.table(page), re.MULTILINE))
    assert rows == {name: field.description for name, field in forms.fields_of(config).items()}
    assert list(rows) == sorted(rows)


def test_every_table_stands_in_one_page_as_its_store_has_it(tables):
    """`python docs/tables.py` writes them after a change."""
    placed = []
    for page in (ROOT / "docs").glob("*.md"):
        text = page.read_text(encoding="utf-8")
        placed += [place[1] for place in tables.PLACE.finditer(text)]
        assert text.count("<!-- table: ") == text.count("<!-- /table -->") == len(tables.PLACE.findall(text)), page.name
        assert tables.fill(text) == text, f"{page.name}: run `make tables`"
    assert sorted(placed) == sorted([*tables.MADE, *(file.stem for file in tables.MEASURED.glob("*.md"))])
    changed = "<!-- table: precision -->\n\nother\n\n<!-- /table -->\n"
    assert tables.fill(changed) == f"<!-- table: precision -->\n\n{tables.table('precision')}\n\n<!-- /table -->\n"


def test_every_field_of_a_file_is_on_the_page_of_files(tables):
    for name, record in tables.RECORDS.items():
        assert [field for field, known in record.model_fields.items() if not known.description] == [], name
        assert f"<!-- table: fields-{name} -->" in (ROOT / "docs" / "formats.md").read_text(encoding="utf-8")
    rows = tables.table("fields-sweep")
    assert "| `worst.placement` " in rows and "| `outcomes.by_placement` " in rows
    assert "by_placement[]" not in rows  # the same record, described once
    assert "| `rules[].outcome` " in tables.table("fields-gate")


def test_tables_of_the_study_are_those_of_its_kept_figures(monkeypatch, tmp_path):
    """One store: the tables of the pages are made of benchmarks/study/, and a changed figure is noticed."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import study
    from report import TABLES

    for name, table in study.TABLES.items():
        assert (TABLES / f"{name}.md").read_text(encoding="utf-8") == f"{table().strip()}\n"
    rows = sorted(study.STORE.glob("*.json"))
    rows = [file for file in rows if not file.stem.startswith("gpu-")]  # those are of benchmarks/gpu.py
    assert {file.stem for file in rows} <= {row.name for row in study.ROWS} and rows
    for file in rows:
        row = read_json(file)
        commands = [f"posgap {command}" for of in study.ROWS if of.name == file.stem for command in of.commands]
        if row["date"] < "2026-11-27":  # before commands said the precision
            commands = [command.replace(" --dtype float32", "") for command in commands]
        if "foretold" not in row:  # before a plan was asked for
            commands = [command for command in commands if not command.startswith("posgap plan ")]
        if file.stem.startswith("replicate-") and "ten" not in row["figures"]:  # before ten documents were asked, too
            commands = [command for command in commands if "-ten" not in command]
        if "teacher_temperature" not in row["figures"]:  # before there was one, so that it was 1
            commands = [command.replace(" --teacher-temperature 1", "") for command in commands]
        assert row["commands"] == commands, file.stem
        assert row["seconds"] > 0 and row["date"] and row["machine"]
    monkeypatch.setattr(study, "STORE", tmp_path)
    changed = read_json(study.ROOT / "benchmarks" / "study" / "smollm2-kv.json")
    changed["figures"]["gap"] += 1
    (tmp_path / "smollm2-kv.json").write_text(json.dumps(changed), encoding="utf-8")
    of_model = [line for line in study.curves().splitlines() if "SmolLM2" in line]
    assert of_model and of_model[0] not in (TABLES / "study-curves.md").read_text(encoding="utf-8")


# Figures of tables


def tables_of(text: str) -> list[tuple[str, list[str], list[list[str]]]]:
    """The tables of a page: the chapter that each stands in, its columns, and its rows."""
    chapter, found, rows = "", [], []
    for line in [*text.splitlines(), ""]:
        if line.startswith("|"):
            rows.append([cell.strip() for cell in line.strip("| ").split("|")])
            continue
        if len(rows) > 2:
            found.append((chapter, rows[0], rows[2:]))
        rows = []
        chapter = line if line.startswith("## ") else chapter
    return found


def first_number(cell: str) -> float | None:
    number = re.match(r"[-+]?\d+(\.\d+)?", cell)
    return float(number[0]) if number else None


def wrong_figures(text: str) -> list[str]:
    """The rows of a page's tables that contradict themselves, or another row of the chapter.

    A gap is no less than the difference of two positions, and the largest of these where all that were swept are
    shown; a mean is theirs; a difference is that of the two rows above; and one model's gap and mean are the same in
    all tables of a chapter whose first column is the model.
    """
    wrong, known = [], {}
    for chapter, columns, rows in tables_of(text):
        places = [i for i, name in enumerate(columns) if re.fullmatch(r"(pos )?\d+( %)?|last", name)]
        for number, cells in enumerate(rows):
            row = f"{columns[0]} {' | '.join(cells)}"
            if cells[0] == "difference":
                above = zip(rows[number - 1], rows[number - 2], cells)
                numbers = [tuple(map(first_number, each)) for each in above]
                of_columns = [n for i, n in enumerate(numbers) if i in places and None not in n]
                wrong += [row] * any(abs(a - b - c) > 1 for a, b, c in of_columns)
                continue
            shown = [n for i in places if (n := first_number(cells[i])) is not None]
            figures: dict[str, float | None] = {}
            for name, cell in zip(columns, cells):
                figures.setdefault(name, first_number(cell))
            gap, mean = figures.get("gap"), figures.get("mean")
            if len(shown) > 2 and gap is not None:
                spread = max(shown) - min(shown)
                over_seeds = "±" in "".join(cells)  # then the gap is a mean of gaps, and not all positions are shown
                wrong += [row] * (gap < spread - 1 or (gap > spread + 1 and not over_seeds))
                if mean is not None and not over_seeds:
                    wrong += [row] * (abs(mean - sum(shown) / len(shown)) > 1)
            if columns[0] == "model" and None not in (gap, mean):
                wrong += [row] * (known.setdefault((chapter, cells[0]), (gap, mean)) != (gap, mean))
    return wrong


def test_figures_of_tables_do_not_contradict_each_other(tables):
    """Of the tables that people write: the others are held to their stores."""
    for page in PAGES:
        assert wrong_figures(tables.PLACE.sub("", (ROOT / page).read_text(encoding="utf-8"))) == [], page


SWEEPS = """| of 10 documents | 1 | 3 | 5 | mean | gap |
|---|---|---|---|---|---|
| literal | 95 | 70 | 45 | 70.0 | 50.0 (15.6 to 85.0) |
| by a fact | 35 | 15 | 10 | 20.0 | 25.0 (0.0 to 48.4) |
| difference | -60 | -55 | -35 | -50.0 | |
"""


@pytest.mark.parametrize(
    ("was", "now"),
    [
        ("25.0 (0.0", "20.0 (0.0"),
        ("20.0 | 25.0", "24.0 | 25.0"),
        ("| 45 |", "| 40 |"),
        ("| -60 | -55 |", "| -60 | -45 |"),
    ],
)
def test_a_changed_figure_is_noticed(was, now):
    assert was in SWEEPS and wrong_figures(SWEEPS) == [] and wrong_figures(SWEEPS.replace(was, now))


def test_two_figures_of_one_model_are_noticed():
    text = """## Chapter

| model | gap | mean |
|---|---|---|
| one | 30.0 | 70.0 |

| model | mean | gap |
|---|---|---|
| one | 70.0 | 30.0 |
"""
    assert wrong_figures(text) == [] and len(wrong_figures(text.replace("| 70.0 | 30.0", "| 70.0 | 31.0"))) == 1
