"""The page: nothing from outside, what it shows, and the model card."""

import re

import pytest
import yaml
from chromium import browser, program
from huggingface_hub import ModelCard
from report_pages import SINGLE, Reader, sweep_of

from posgap.generation.served import EndpointIdentity
from posgap.measurement.comparison import Comparison, Difference
from posgap.measurement.model_card import model_card
from posgap.measurement.plots import position_curves
from posgap.measurement.report import _file, page
from posgap.measurement.shape import Shape
from posgap.measurement.summary import summary_text
from posgap.measurement.sweeps import Flatness, Sweep
from posgap.options.sweep import SweepConfig

PAIRS = sweep_of([[1, 2], [2, 1], [19, 20]], [70.0, 20.0, 65.0])


def comparison_of(sweep: Sweep) -> Comparison:
    return Comparison(
        reference=sweep.label,
        **{name: getattr(sweep, name) for name in ("metric", "n_examples", "n_docs", "placements")},
        differences=[
            Difference(
                **{"label": "<new>", "accuracy": [2.0, -8.0, 0.0], "ci95": [(-2, 6), (-13, -3), (-4, 4)]},
                **{"mean": -2.0, "mean_ci95": (-5, 1), "gap": 9.0, "gap_ci95": (1, 14), "better": [], "worse": []},
                asked_otherwise=[],
                verdict="<new> is worse",
            )
        ],
    )


@pytest.mark.parametrize("compared", [False, True])
@pytest.mark.parametrize("sweeps", [[SINGLE], [SINGLE, SINGLE], [PAIRS], [PAIRS, PAIRS]])
def test_pages_are_whole_and_need_no_network(sweeps, compared):
    text = page(sweeps, "a <title>", comparison=comparison_of(sweeps[0]) if compared else None)
    read = Reader(text)
    assert not re.search(r"https?:|url\(|@import|<link|<img", text)
    assert not {"src", "href"} & {name for _, name, _ in read.attributes}
    assert "a <title>" in read.text and "&lt;base&gt;" in text and "<base>" not in text and "['1', '<b>']" in read.text
    # Whatever may scroll can be reached by keyboard and has a name.
    assert text.count('class="scroll"') == text.count('class="scroll" tabindex="0" role="region" aria-label=')


@pytest.mark.parametrize(
    ("backend", "own", "others"),
    [
        ("openai", {"base_url", "concurrency", "seed"}, {"dtype", "batch_tokens", "tensor_parallel_size", "template"}),
        ("transformers", {"dtype", "batch_tokens", "seed"}, {"base_url", "concurrency", "tensor_parallel_size"}),
    ],
)
def test_settings_are_those_that_the_backend_looks_at(backend, own, others):
    settings = SweepConfig(model="m", out="o", examples="e", backend=backend).parameter_values()
    changes = {"settings": settings, "served": EndpointIdentity() if backend == "openai" else None}
    shown = re.findall("<dt>(.*?)</dt>", page([sweep_of([[1], [2]], [9.0, 8.0], **changes)], "t"))
    assert own <= {*shown} and not others & {*shown}
    assert ("model, sha256" in shown) == (backend == "transformers")


def test_the_curve_is_where_the_accuracies_are():
    (broad, narrow) = re.findall(r'points="([^"]*)"', page([SINGLE], "t"))
    points = [tuple(map(float, pair.split(","))) for pair in broad.split()]
    # 340 high, 12 above and 44 below the axis; 720 wide, 40 left and 14 right.
    wanted = [(40 + (p - 0.5) / 20 * 666, 12 + (100 - v) / 100 * 284) for p, v in [(1, 90), (10, 50), (20, 80)]]
    for point, expected in zip(points, wanted, strict=True):
        assert point == pytest.approx(expected, abs=0.06)
    assert len(narrow.split()) == 3


def test_differences_are_where_the_figures_are():
    text = page([SINGLE, SINGLE], "t", comparison=comparison_of(SINGLE))
    broad = text.split("<svg")[1]
    points = [tuple(map(float, pair)) for pair in re.findall(r'cx="([^"]*)" cy="([^"]*)"', broad)]
    # 280 high, 12 above and 44 below; intervals reach from -13 to 6, so that lines stand at -15, -10 ... 10.
    wanted = [(40 + (at + 0.5) / 3 * 666, 12 + (10 - v) / 25 * 224) for at, v in enumerate([2, -8, 0])]
    for point, expected in zip(points, wanted, strict=True):
        assert point == pytest.approx(expected, abs=0.06)
    assert re.findall(r'text-anchor="end">([^<]*)<', broad) == ["-15", "-10", "-5", "0", "+5", "+10"]
    assert (
        "&lt;new&gt; is worse" in text and '<th scope="row">10</th><td>-8.0 <small>-13.0 to -3.0</small></td>' in text
    )


def test_a_sweep_is_read_out_in_words():
    shape = Shape(
        **{"name": "U-shaped", "ends": 1, "middle": 1, "beginning_over_middle": 40, "end_over_middle": 30},
        **{"beginning_over_middle_ci95": (30, 50), "end_over_middle_ci95": (20, 40)},
    )
    assert summary_text(SINGLE.model_copy(update={"shape": shape})) == [
        "Accuracy (sub_em, in percent) is highest with the gold document at 1 (90.0) and lowest at 10 (50.0): a gap of "
        "40.0 points (95 % interval 30.0 to 50.0). A model without position bias would show about 9.5 by chance.",
        "The mean over 3 placements is 60.0 (55.0 to 65.0), of 50 examples.",
        "Position matters (sign-flip test, p < 0.001).",
        "The curve is U-shaped: against the middle (1 position), the beginning (1 position) differs by +40.0 points "
        "(+30.0 to +50.0), and the end by +30.0 (+20.0 to +40.0).",
    ]
    flat = SINGLE.model_copy(update={"flatness": Flatness(p=0.3679), "shape": shape})
    # A sweep by an older posgap names a shape all the same: neither the words nor the table do.
    assert (
        "U-shaped"
        not in " ".join(summary_text(flat)) + page([flat], "t").split("No shape is named")[0].split("U-shaped:")[0]
    )
    assert '<th scope="row">shape</th><td>–</td>' in page([flat], "t")
    assert summary_text(flat)[2:] == ["There is no evidence that position matters (sign-flip test, p = 0.368)."]
    assert "with the gold documents at 1+2 (70.0)" in summary_text(PAIRS)[0]
    assert summary_text(PAIRS)[0].replace("'", "&#39;") in page([PAIRS], "t")


def test_pairs_are_a_grid_of_first_and_second_hop():
    text = page([PAIRS], "t")
    rows = re.findall(r"<tr>(<th scope=\"row\">\d+</th>(?:<td.*?</td>)+)</tr>", text.split("Gap and mean")[0])
    cells = [re.sub(r"<td[^>]*>", "|", re.sub(r"</?th[^>]*>|</td>", "", row)) for row in rows]
    assert cells == ["1||70|", "2|20||", "19|||65"]


def test_the_model_card_is_metadata_the_hub_reads_with_the_sweep_s_numbers():
    text = model_card(PAIRS)
    _, front, body = text.split("---\n", 2)
    (entry,) = yaml.safe_load(front)["model-index"]
    assert entry["name"] == "<base>"
    results = {r.metric_type: r for r in ModelCard(text, ignore_metadata_errors=False).data.eval_results}
    assert {kind: r.metric_value for kind, r in results.items()} == {
        "position_gap": 50.0,
        "sub_em": 60.0,
        "worst_position": 20.0,
    }
    assert results["worst_position"].metric_name == "Worst position (2+1)"
    body = " ".join(body.split())
    assert "| gap, best minus worst position | 50.0 | 30.0 to 50.0 |" in body and "| connected pairs | 70.0 |" in body
    assert "| gold at 19+20 | 65.0 | 60.0 to 70.0 |" in body


def test_the_title_says_model_task_and_number():
    assert SINGLE.title == "model (<base>): task kv, 50 examples"
    assert SINGLE.model_copy(update={"label": "model"}).title == "model: task kv, 50 examples"
    of_pipeline = SINGLE.model_copy(update={"model": "runs/distill/out", "label": "r1"})
    assert of_pipeline.title == "r1: task kv, 50 examples"
    assert SINGLE.model_copy(update={"model": "a/b-7B", "label": "b-7B", "n_examples": 1200}).title == (
        "b-7B: task kv, 1,200 examples"
    )


def test_figures_come_first_and_then_the_curve():
    text = page([SINGLE], SINGLE.title)
    order = ["<h1>", 'class="figures"', '<svg class="broad"', "Accuracy (sub_em, in percent) is highest"]
    assert [text.index(part) for part in order] == sorted(text.index(part) for part in order)
    cards = re.findall(r'figure-card"><span>([^<]+)</span><strong>([^<]+)</strong><small>([^<]+)<', text)
    assert [card[:2] for card in cards] == [
        ("position gap", "40.0"), ("mean accuracy", "60.0"), ("accuracy at the worst position", "50.0")
    ]  # fmt: skip
    assert cards[2][2] == "at 10; 90.0 at the best, 1"


def test_names_of_baselines_stand_above_their_lines():
    baseline = {"accuracy": 55.0, "ci95": (45, 65), "over_mean": -5.0, "over_mean_ci95": (-11, 1)}
    baseline |= {"best_over": 30.0, "best_over_ci95": (20, 40), "outcomes": {"answered": 50}}
    figure = position_curves([Sweep.model_validate(SINGLE.model_dump() | {"baselines": {"as-retrieved": baseline}})])
    figure.canvas.draw()
    (axes,) = figure.axes
    (name,) = axes.texts
    _, line = axes.transData.transform((1, 55.0))
    assert name.get_window_extent().y0 > line


@pytest.mark.skipif(not program(), reason="there is no Chromium here")
def test_a_phone_shows_all_figures_and_no_broken_words(tmp_path):
    baseline = {"accuracy": 55.0, "ci95": (45, 65), "over_mean": -5.0, "over_mean_ci95": (-11, 1)}
    baseline |= {"best_over": 30.0, "best_over_ci95": (20, 40), "outcomes": {"answered": 50}}
    known = {"baselines": {"closed-book": baseline, "as-retrieved": baseline}, "n_examples": 300}
    sweeps = [SINGLE.model_copy(update={"label": name}) for name in ("reordering", "candidate after distillation")]
    sweeps = [Sweep.model_validate({**each.model_dump(), **known}) for each in sweeps]
    (tmp_path / "one.html").write_text(page(sweeps[:1], sweeps[0].title))
    (tmp_path / "two.html").write_text(page(sweeps, "two"))
    off_screen = """[...document.querySelectorAll('main td, main th, .figure-card, main p')].filter(
        (each) => each.getClientRects().length && each.getBoundingClientRect().right > innerWidth
    ).map((each) => each.textContent)"""
    # A word is broken where what it takes in height is more than a line.
    broken = """[...document.querySelectorAll('main th, main td, .figure-card span')].flatMap((each) => {
        const words = [], walker = document.createTreeWalker(each, NodeFilter.SHOW_TEXT);
        for (let node; node = walker.nextNode();)
            for (const found of node.textContent.matchAll(/[A-Za-z]+/g)) {
                const range = document.createRange();
                range.setStart(node, found.index);
                range.setEnd(node, found.index + found[0].length);
                if (range.getClientRects().length > 1) words.push(found[0]);
            }
        return words;
    })"""
    with browser() as page_of:
        for name in ("one", "two"):
            page_of.open((tmp_path / f"{name}.html").as_uri(), 390, 844)
            assert page_of.js(off_screen) == [] and page_of.js(broken) == [], name
            assert page_of.js("document.documentElement.scrollWidth") <= 390


@pytest.mark.skipif(not program(), reason="there is no Chromium here")
def test_a_phone_breaks_no_name_of_what_to_take(tmp_path):
    rows = "".join(f"<tr><th scope=row>purpose</th><td>{name}</td></tr>" for name in ("reordering", "self-extended"))
    table = f"<table class='rules wide'><tr><th scope=col>purpose</th><th scope=col>take</th></tr>{rows}</table>"
    head = "<!doctype html><meta name=viewport content='width=device-width, initial-scale=1'>"
    (tmp_path / "take.html").write_text(f"{head}<style>{_file('style.css.j2')}</style><main>{table}</main>")
    lines = """[...document.querySelectorAll('td')].map((each) => {
        const range = document.createRange();
        range.selectNodeContents(each);
        return range.getClientRects().length;
    })"""
    with browser() as page_of:
        page_of.open((tmp_path / "take.html").as_uri(), 390, 844)
        assert page_of.js(lines) == [1, 1]
