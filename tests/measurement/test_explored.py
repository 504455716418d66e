"""The report as people explore it: what it embeds, and clicks, filters and keys in a real Chromium."""

import base64
import csv
import html
import io
import json
import random
import zlib

import numpy as np
import pytest
from chromium import browser, program
from examples import qa_example
from written_sweeps import ASKED, write_sweep

from posgap.data.synthetic import two_hop_examples
from posgap.foundation.files import write_jsonl
from posgap.measurement import page_examples as module
from posgap.measurement import report
from posgap.measurement.evidence import Evidence
from posgap.measurement.figures import summarize
from posgap.measurement.page_examples import _pack, pack_folders, pack_sweep, read_texts
from posgap.measurement.predictions import read_predictions
from posgap.measurement.report import _file, save_page
from posgap.measurement.sweep_folder import write_sweep as write_folder
from posgap.measurement.sweeps import Sweep, read_sweep
from posgap.options.compare import CompareConfig
from posgap.options.gate import GateConfig
from posgap.tasks.placements import swept_placements
from posgap.tasks.registry import TASKS
from posgap.verbs.compare import compare
from posgap.verbs.gate import judge_and_write

HOSTILE = [
    "</script><script>document.title = 'taken'</script>",
    "nul \0 and half a pair \ud83d, an override \u202e and \u2066",
    "مرحبا بالعالم: الجواب هو ٤٢",
    "x" * 1_000_000,
    "<img src=x onerror=\"document.title='taken'\">{{ 7 * 7 }} ${7} ]]> <!--",
]


def asking(number, n_documents=8):
    """An example with a question of its own."""
    return qa_example(number, n_documents).model_copy(update={"question": f"Who got it, of {number} in all?"})


def swept_folder(folder, examples, n_docs, skill, label, task="qa", said=None, seed=0, samples=1):
    """A sweep's folder as the stage writes it, of answers that are right with these probabilities [P]."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(seed)
    placements = [list(p.positions) for p in swept_placements(n_docs, TASKS[task].n_gold)]
    right = rng.random((len(examples), len(placements), samples)) < np.asarray(skill)[:, None]
    rows = [
        {
            "id": example.id,
            "content": f"{at:016x}",
            "placement": placement,
            "response": said(at, column) if said else f"{'yes' if right[at, column, k] else 'no'} {column}",
            "correct": bool(right[at, column, k]),
            "echo": False,
        }
        | ({"sample": k} if k else {})
        for at, example in enumerate(examples)
        for column, placement in enumerate(placements)
        for k in range(samples)
    ]
    names = {"task": task, "model": "m", "label": label, "scaling": None, "metric": "em", "n_docs": n_docs}
    asked = ASKED.model_copy(update={"samples": samples})
    digests = {"examples_digest": "e", "model_digest": "", "prompt_digest": "p", "asked": asked, "settings": {}}
    sweep = Sweep(
        **names,
        **summarize(
            right.mean(axis=2), placements, 0, TASKS[task].categories(swept_placements(n_docs, TASKS[task].n_gold))
        ),
        **digests,
    )
    write_folder(sweep, rows, [], folder, pack_sweep(sweep, rows, examples))
    return folder


def test_a_page_gives_back_what_it_was_made_of(tmp_path):
    examples = [asking(i) for i in range(5)]
    folder = swept_folder(tmp_path / "a", examples, 4, [0.9, 0.5, 0.5, 0.7], "a")
    texts = read_texts(folder)
    assert texts.keys() == read_texts(folder / "sweep.json").keys() == {example.id for example in examples}
    for example in examples:
        assert texts[example.id].question == example.question and texts[example.id].answers == example.answers
    assert read_texts(tmp_path) == {}
    for wrong in ("", "<html>", (folder / "sweep.html").read_text().replace('id="data-map">H4', 'id="data-map">H5')):
        (folder / "sweep.html").write_text(wrong)
        assert read_texts(folder) == {}


def test_what_does_not_fit_is_left_out_those_that_depend_on_the_position_last(tmp_path, monkeypatch):
    letters = random.Random(0)
    answers = ["".join(letters.choices("abcdefghij", k=9000)) for _ in range(40)]
    examples = [asking(i) for i in range(40)]
    folder = swept_folder(tmp_path / "a", examples, 4, [0.9, 0.5, 0.5, 0.9], "a", said=lambda at, _: answers[at])
    sweep, rows = read_sweep(folder), read_predictions(folder)
    mixed = {e.id for e in examples if len({row["correct"] for row in rows if row["id"] == e.id}) == 2}
    monkeypatch.setattr(module, "MAX_PAGE_BYTES", 200_000)
    some = pack_sweep(sweep, rows, examples)
    assert 15 < some.n_answers < len(mixed)
    packed = zlib.decompress(base64.b64decode(some.answers), wbits=31)
    assert 180_000 < len(packed) <= 200_000
    save_page(report.page([sweep], "some", some), folder / "sweep.html")
    assert mixed > read_texts(folder).keys() and f"responses of {some.n_answers}" in (folder / "sweep.html").read_text()
    monkeypatch.setattr(module, "MAX_PAGE_BYTES", 1000)
    assert pack_sweep(sweep, rows, examples).n_answers == 0


def test_preact_is_what_the_registry_has(tmp_path):
    import hashlib

    for name in ("preact.umd.js", "hooks.umd.js"):
        digest = hashlib.sha256(_file(f"preact/{name}").encode()).hexdigest()
        assert f"| {name} |" in _file("preact/README.md") and f"| {digest} |" in _file("preact/README.md")
    save_page(report.page([read_sweep(write_sweep(tmp_path / "a", [0.9] * 5))], "t"), tmp_path / "page.html")
    assert "preact" not in (tmp_path / "page.html").read_text(), "a page without a map needs no Preact"


@pytest.fixture(scope="module")
def chromium():
    if not program():
        pytest.skip("no Chromium on PATH: the page is not tried in a browser")
    with browser() as page:
        yield page


@pytest.fixture
def page(chromium):
    """A page that must not complain, nor ask for anything but its own file."""
    chromium.complaints.clear()
    chromium.asked_for.clear()
    yield chromium
    assert chromium.complaints == []
    assert all(address.startswith(("file:", "data:", "blob:", "about:")) for address in chromium.asked_for)


def explore(page, file, **options):
    page.open(f"{file.as_uri()}#examples", **options)
    page.wait("document.getElementById('explorer').dataset.ready === 'yes'")
    page.await_inflight()


COUNT = "document.querySelector('.count').innerText"
SHOWN = "[...document.querySelectorAll('.grid-row')].map((row) => row.querySelector('bdi').innerText)"
ACCURACIES = "[...document.querySelectorAll('.column')].map((column) => Number(column.dataset.accuracy))"
SPOKEN = "document.querySelector('.unseen').innerText"


def cell(page, row, column):
    return page.js(f"document.getElementById('cell-{row}-{column}').className")


def opened(page):
    page.wait("document.querySelector('dialog[open] .answers') !== null")
    return page.js("document.querySelector('dialog').innerText")


@pytest.mark.parametrize("n_examples", [200, 2000])
def test_figures_filters_clicks_and_keys(page, tmp_path, n_examples):
    skill = np.linspace(1, 0.3, 10).tolist() + np.linspace(0.3, 0.9, 10).tolist()
    examples = [asking(i, 24) for i in range(n_examples)]
    folder = swept_folder(tmp_path / "a", examples, 20, skill, "base")
    sweep, evidence = read_sweep(folder), Evidence(folder)
    correct, ids = evidence.scores, evidence.ids
    explore(page, folder / "sweep.html")

    # The figures are those of sweep.json, read back from the cells and from the text.
    assert page.js(ACCURACIES) == pytest.approx(sweep.accuracy, abs=1e-9)
    text = page.js("document.querySelector('.figures').innerText")
    assert all(f"{figure:.1f}" in text for figure in (sweep.gap, sweep.mean, *sweep.gap_ci95, *sweep.mean_ci95))
    assert page.js(COUNT) == f"{n_examples:,} examples of {n_examples:,}"
    # However many examples there are, those in sight are drawn.
    assert page.js("document.querySelectorAll('.grid-row').length") < 60
    assert page.js("document.querySelector('[role=grid]').getAttribute('aria-rowcount')") == str(n_examples + 1)
    hardest = int(np.lexsort((np.arange(n_examples), correct.mean(axis=1)))[0])
    assert correct[ids.index(page.js(SHOWN)[0])].mean() == correct[hardest].mean()

    # Filters and order.
    page.choose("Outcome", "flips")
    mixed = [i for i in range(n_examples) if 0 < correct[i].mean() < 1]
    assert page.js(COUNT).startswith(f"{len(mixed):,} examples of")
    assert page.js(ACCURACIES) == pytest.approx((100 * correct[mixed].mean(axis=0)).tolist())
    page.choose("Sort", "file")
    assert page.js(SHOWN)[:5] == [ids[i] for i in mixed[:5]]
    page.choose("Outcome", "wrong")
    page.choose("At position", "9")
    wrong = [i for i in range(n_examples) if not correct[i, 9]]
    assert page.js(COUNT).startswith(f"{len(wrong):,} examples of") and page.js(SHOWN)[:3] == [
        ids[i] for i in wrong[:3]
    ]
    page.choose("At position", "")
    page.choose("Part", "middle")
    wrong = [i for i in range(n_examples) if not correct[i, 6:14].any()]
    assert page.js(COUNT).startswith(f"{len(wrong):,} example") and len(page.js(ACCURACIES)) == 8
    page.choose("Outcome", "any")
    page.choose("Part", "")
    page.choose("Sort", "flips")
    turns = np.abs(np.diff(correct, axis=1)).sum(axis=1)
    assert turns[ids.index(page.js(SHOWN)[0])] == turns.max()
    page.choose("Text", examples[7].question)
    page.wait(f"{COUNT}.startsWith('1 example ')")
    assert page.js(SHOWN) == ["qa-7"]
    page.choose("Text", "nobody said this")
    page.wait("document.querySelector('.empty') !== null")
    page.choose("Text", "")
    page.wait(f"{COUNT}.startsWith('{n_examples:,}')")

    # A click opens the response, an arrow goes to the next position, Escape closes.
    page.choose("Sort", "file")
    page.click("#cell-2-4")
    said = opened(page)
    assert "qa-2" in said and "gold at 5" in said and examples[2].question in said
    page.js("document.querySelector('dialog .steps button').focus()")
    page.press("ArrowRight")
    page.wait("document.querySelector('dialog h2').innerText.includes('gold at 6')")
    page.press("Escape")
    assert page.js("document.querySelector('dialog')") is None
    assert page.js("document.activeElement.className") == "map", "the map has the keyboard again"

    # The keyboard alone, with what a screen reader says.
    page.choose("Sort", "id")
    page.js("document.querySelector('.map').focus()")
    for key in ("ArrowDown", "ArrowRight", "ArrowRight"):
        page.press(key)
    word = "right" if correct[1, 2] else "wrong"
    assert page.js(SPOKEN) == f"qa-1, position 3: {word}"
    active = page.js("document.querySelector('.map').getAttribute('aria-activedescendant')")
    assert page.js(f"document.getElementById('{active}').getAttribute('aria-label')") == f"position 3: {word}"
    page.press("End", modifiers=2)
    assert page.js(SPOKEN).startswith(f"qa-{n_examples - 1}, position 20")
    assert page.js("document.querySelector('.current').getBoundingClientRect().bottom") <= page.js(
        "document.querySelector('.map').getBoundingClientRect().bottom"
    )
    page.press("Enter")
    assert f"qa-{n_examples - 1}" in opened(page)
    page.press("Escape")


def saved(page):
    """The lines of the table that the button saves."""
    page.js(
        "window.kept = []; window.made ??= URL.createObjectURL;"
        "URL.createObjectURL = (blob) => { window.kept.push(blob); return 'about:blank#kept'; };"
        "HTMLAnchorElement.prototype.click = function () {};"
    )
    page.click("js:[...document.querySelectorAll('.downloads button')].find((x) => x.innerText === 'CSV')")
    page.wait("window.kept.length === 1")
    text = bytes(page.js("window.kept[0].arrayBuffer().then((buffer) => [...new Uint8Array(buffer)])")).decode()
    return list(csv.DictReader(io.StringIO(text, newline="")))


def test_downloads_are_the_answers_as_csv(page, tmp_path):
    examples = [asking(i) for i in range(6)]
    said = ['a "quoted", text', "two\r\nlines", "=1+1", "é 漢 😀", "", "ordinary"]
    folder = swept_folder(tmp_path / "a", examples, 4, [1, 0.5, 0.5, 1], "a, b", said=lambda at, _: said[at], samples=2)
    explore(page, folder / "sweep.html")
    page.choose("Sort", "file")
    rows, lines = read_predictions(folder), saved(page)
    assert len(lines) == len(rows) == 48
    for row, line in zip(rows, lines):
        score, sample = float(row["correct"]), row.get("sample", 0)
        assert (line["id"], line["position"], line["sample"]) == (row["id"], str(row["placement"][0]), str(sample))
        assert float(line["score"]) == score
        # A spreadsheet would run it as a formula.
        assert line["response"] == ("'=1+1" if row["response"] == "=1+1" else row["response"])
        assert line["model"] == "a, b"
        assert line["outcome"] == ("answered" if row["response"] else "empty")
    page.choose("Text", "two")
    page.wait(f"{COUNT}.startsWith('1 example ')")
    assert {line["id"] for line in saved(page)} == {"qa-1"}


def test_two_models_stand_side_by_side_with_their_difference(page, tmp_path):
    examples = [asking(i) for i in range(60)]
    base = swept_folder(tmp_path / "base", examples, 5, [1, 0.5, 0.2, 0.5, 0.9], "base")
    new = swept_folder(tmp_path / "new", examples[::-1], 5, [0.95] * 5, "new", seed=1)
    # The same examples in another order: they are paired by what they ask.
    rows = [row | {"content": f"{int(row['id'].split('-')[1]):016x}"} for row in read_predictions(new)]
    write_jsonl(new / "predictions.jsonl", rows)
    out = compare(CompareConfig(sweeps=[base, new], out=tmp_path / "out"))
    old, other = Evidence(base), Evidence(new).reorder_like(Evidence(base))
    explore(page, out / "comparison.html")
    change = 100 * (other.scores - old.scores).mean(axis=0)
    wanted = [*read_sweep(base).accuracy, *read_sweep(new).accuracy, *change]
    assert page.js(ACCURACIES) == pytest.approx(wanted, abs=1e-9)
    page.choose("Sort", "file")
    words = {(0, 1): "gained", (1, 0): "lost", (1, 1): "both-right", (0, 0): "both-wrong"}
    for at in range(8):
        for column in range(5):
            before, after = old.scores[at, column], other.scores[at, column]
            assert cell(page, at, 5 + column).split()[1] == ("full" if after else "zero")
            assert cell(page, at, 10 + column).split()[1] == words[before, after]
    page.choose("Change", "worse")
    worse = [i for i in range(60) if (other.scores[i] < old.scores[i]).any()]
    assert page.js(COUNT) == f"{len(worse)} examples of 60"
    page.choose("Change", "any")
    page.choose("Sort", "losses")
    losses = (other.scores - old.scores).mean(axis=1)
    assert losses[old.ids.index(page.js(SHOWN)[0])] == losses.min()
    page.choose("Sort", "file")
    page.click("#cell-3-12")
    said = opened(page)
    rows = {(row["id"], *row["placement"]): row["response"] for row in read_predictions(new)}
    assert "base" in said and "new" in said and "gold at 3" in said and rows["qa-3", 3] in said
    page.press("Escape")
    page.choose("Show", "change")
    assert page.js(ACCURACIES) == pytest.approx(change.tolist(), abs=1e-9)


def test_the_gate_s_page_has_the_examples_as_a_tab(page, tmp_path, monkeypatch):
    # The responses of these made-up sweeps are none to their examples.
    monkeypatch.setattr("posgap.verbs.gate.swept_examples", lambda *_: None)
    examples = [asking(i) for i in range(210)]
    base = swept_folder(tmp_path / "base", examples, 5, [1, 0.6, 0.3, 0.6, 0.9], "base")
    new = swept_folder(tmp_path / "new", examples, 5, [0.995] * 5, "new")
    out = judge_and_write(GateConfig(candidate=new, base=base, out=tmp_path / "gate"))
    page.open((out / "gate.html").as_uri())
    tabs = "[...document.querySelectorAll('[role=tab]')]"
    assert page.js(f"{tabs}.map((tab) => tab.innerText)") == ["Verdict", "Positions", "Examples", "Evidence"]
    visible = "[...document.querySelectorAll('[role=tabpanel]')].filter((x) => !x.hidden).map((x) => x.id)"
    assert page.js(visible) == ["part-verdict"] and "new: admitted" in page.js("document.body.innerText")
    page.js(f"{tabs}[0].focus()")
    page.press("ArrowRight")
    page.press("ArrowRight")
    assert page.js(visible) == ["part-examples"]
    assert page.js("document.activeElement.getAttribute('aria-selected')") == "true"
    page.await_inflight()
    titles = page.js("[...document.querySelectorAll('.panel-title')].map((x) => x.innerText)")
    assert titles == ["base", "new (candidate)", "difference"]
    page.press("End")
    assert page.js(visible) == ["part-evidence"]


def test_pairs_are_filtered_by_category(page, tmp_path):
    examples = list(two_hop_examples(20, 6, 0))
    placements = swept_placements(6, 2)
    skill = [0.9 if b > a else 0.1 for a, b in (p.positions for p in placements)]
    folder = swept_folder(tmp_path / "pairs", examples, 6, skill, "pairs", task="multihop-cot")
    sweep = read_sweep(folder)
    explore(page, folder / "sweep.html")
    page.choose("Category", "reversed")
    wanted = [a for a, name in zip(sweep.accuracy, sweep.categories) if name == "reversed"]
    assert page.js(ACCURACIES) == pytest.approx(wanted, abs=1e-9)


@pytest.mark.nightly
def test_nothing_scrolls_sideways_but_what_says_so(page, tmp_path):
    examples = [asking(i, 40) for i in range(12)]
    examples[0] = examples[0].model_copy(update={"id": "i" * 100_000, "question": "q" * 100_000})
    folder = swept_folder(tmp_path / "a", examples, 30, [0.5] * 30, "a")
    sweep = read_sweep(folder).model_copy(update={"label": "名" * 50_000 + "x" * 50_000})
    explored = pack_sweep(sweep, read_predictions(folder), examples)
    save_page(report.page([sweep, sweep], sweep.label, explored), folder / "sweep.html")
    for width in (1400, 390):
        page.open((folder / "sweep.html").as_uri(), width=width, dark=width == 390)
        page.wait("document.getElementById('explorer').dataset.ready === 'yes'")
        for tab in ("result", "examples", "settings"):
            page.click(f"#tab-part-{tab}")
            assert page.js("document.documentElement.scrollWidth") <= width, tab
        page.click("#tab-part-examples")
        page.choose("Sort", "file")
        page.click("#cell-0-1")
        opened(page)
        assert page.js("document.querySelector('dialog').scrollWidth") <= width
        assert page.js("document.documentElement.scrollWidth") <= width
        page.press("Escape")


def test_hostile_texts_are_shown_as_they_are(page, tmp_path):
    examples = [asking(i) for i in range(len(HOSTILE))]
    for at, text in enumerate(HOSTILE):
        changes = {"question": text[:500], "answers": [text[:50]], "id": f"{text[:40]} {at}"}
        examples[at] = examples[at].model_copy(update=changes)
    folder = tmp_path / "a"
    swept = swept_folder(tmp_path / "plain", [asking(i) for i in range(len(HOSTILE))], 3, [1, 0, 1], "plain")
    rows = read_predictions(swept)
    for row in rows:
        at = int(row["id"].split("-")[1])
        row["id"], row["response"] = examples[at].id, HOSTILE[at]
    folder.mkdir()
    sweep = read_sweep(swept).model_copy(update={"label": HOSTILE[0] + HOSTILE[1]})
    save_page(report.page([sweep], sweep.label, pack_sweep(sweep, rows, examples)), folder / "sweep.html")
    explore(page, folder / "sweep.html")
    page.choose("Sort", "file")
    for at, text in enumerate(HOSTILE):
        page.click(f"#cell-{at}-1")
        opened(page)
        shown = page.js("document.querySelector('dialog .answers pre').textContent.length")
        assert shown == min(len(text.encode("utf-16-le", "surrogatepass")) // 2, 20_000)
        if len(text) > 20_000:
            page.click(".answers button")
            assert page.js("document.querySelector('dialog .answers pre').textContent.length") == len(text)
        assert page.js("document.querySelector('dialog .answers pre').dir") == "auto"
        page.press("Escape")
    assert page.js("document.title") != "taken" and page.js("document.querySelectorAll('img').length") == 0


def test_without_scripts_the_figures_and_the_curve_are_there(page, tmp_path):
    folder = swept_folder(tmp_path / "a", [asking(i) for i in range(8)], 4, [1, 0.5, 0.5, 0.9], "a")
    sweep = read_sweep(folder)
    page.open((folder / "sweep.html").as_uri(), script=False)
    page.call("Emulation.setScriptExecutionDisabled", value=False)
    text = page.js("document.body.innerText")
    assert f"{sweep.gap:.1f}" in text and "needs JavaScript" in text and "Settings" in text
    assert page.js("[...document.querySelectorAll('section')].every((x) => x.checkVisibility())")
    assert page.js("document.querySelector('svg.broad').getBoundingClientRect().height") > 200


def test_in_a_sandbox_as_mlflow_and_kfp_show_it_nothing_complains(page, tmp_path):
    folder = swept_folder(tmp_path / "a", [asking(i) for i in range(8)], 4, [1, 0.5, 0.5, 0.9], "a")
    tell = "<script>setInterval(() => parent.postMessage(document.querySelectorAll('.cell').length, '*'), 50)</script>"
    # Before the page's policy, which no script of somebody else's gets past.
    inner = html.escape((folder / "sweep.html").read_text().replace("<head>", f"<head>{tell}", 1))
    listen = "<script>addEventListener('message', (event) => { window.heard = event.data; });</script>"
    frame = f'{listen}<iframe sandbox="allow-scripts" width="1000" height="800" srcdoc="{inner}"></iframe>'
    (tmp_path / "frame.html").write_text(frame)
    page.open(f"{(tmp_path / 'frame.html').as_uri()}#examples")
    page.wait("window.heard === 32")
    page.await_inflight()


def test_what_was_not_answered_is_its_own_outcome(page, tmp_path):
    examples = [asking(i) for i in range(9)]
    folder = swept_folder(tmp_path / "a", examples, 4, [1] * 4, "a", said=lambda at, _: "" if at == 3 else "yes")
    explore(page, folder / "sweep.html")
    page.choose("Outcome", "none")
    assert page.js(SHOWN) == ["qa-3"] and cell(page, 0, 2).split()[1] == "none"
    page.click("#cell-0-2")
    assert "empty" in opened(page)
    page.press("Escape")
    assert page.js("document.querySelector('.legend-line').innerText").count("not answered") == 1


def test_everything_that_can_be_used_has_a_name_for_screen_readers(page, tmp_path):
    examples = [asking(i) for i in range(6)]
    folder = swept_folder(tmp_path / "a", examples, 4, [1, 0.5, 0.5, 1], "a")
    explore(page, folder / "sweep.html")
    page.click("#cell-1-1")
    opened(page)
    wanted = {
        "tab",
        "combobox",
        "searchbox",
        "grid",
        "rowheader",
        "gridcell",
        "columnheader",
        "button",
        "dialog",
    }
    names: dict[str, list[str]] = {}
    for closed in (False, True):
        if closed:
            page.press("Escape")
        for node in page.call("Accessibility.getFullAXTree")["nodes"]:
            if not node["ignored"]:
                names.setdefault(node["role"]["value"], []).append(node.get("name", {}).get("value", ""))
    assert wanted <= names.keys()
    assert {role for role in wanted if not all(names[role])} == set()
    assert any(name.startswith("position 2: ") for name in names["gridcell"])


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("answers", [{"at": 0, "q": 7, "a": []}]),
        ("answers", [{"at": 99, "q": "", "a": []}]),
        ("map", [{"ids": "no list"}]),
        ("map", ["[" * 100_000]),
        ("map", [" " * 100_000_000]),
    ],
)
def test_pages_that_somebody_changed_say_nothing(tmp_path, name, lines):
    folder = swept_folder(tmp_path / "a", [asking(0)], 4, [1] * 4, "a")
    text = (folder / "sweep.html").read_text()
    written = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    begin = text.index(f'id="data-{name}">') + len(f'id="data-{name}">')
    text = text[:begin] + _pack(written.encode()) + text[text.index("</script>", begin) :]
    (folder / "sweep.html").write_text(text)
    assert read_texts(folder) == {}
    assert pack_folders([Evidence(folder)]).n_answers == 1


def test_an_evidence_without_pages_is_explored_without_questions(tmp_path):
    plain = write_sweep(tmp_path / "plain", [0.9, 0.5, 0.5, 0.5, 0.9])
    plain_page = pack_folders([Evidence(plain)])
    assert (plain_page.n_examples, plain_page.n_answers) == (200, 200)
