"""`posgap view`: what is below a folder, on one page."""

import os
import re
from shutil import copytree
from types import SimpleNamespace
from urllib.parse import unquote

import pytest
from command_line import fails, run
from endpoint import Endpoint, retrieve, served
from examples import kv_example

from posgap.data.reading import write_examples
from posgap.foundation.files import write_json
from posgap.verbs.view import group_by_question, rows


def only_first(prompt: str) -> str:
    head, _, question = prompt.rpartition("Key:")
    return retrieve(head.split("\n")[0] + "\n" + head + "Key:" + question)


@pytest.fixture
def results(tmp_path, monkeypatch, capsys):
    """Two sweeps of the same examples, a check and a mitigation of others, in folders of folders."""
    top = tmp_path / "run s"
    for name, number in (("few", 3), ("more", 24)):
        write_examples(tmp_path / f"{name}.jsonl", [kv_example(i, 4) for i in range(number)])
    with served(Endpoint(retrieve)) as good, served(Endpoint(lambda text: "no idea")) as bad:
        for place, endpoint in (("a/right", good), ("wrong", bad)):
            asked = ["--base-url", endpoint.url, "--model", place[-5:], "--n-docs", "4", "--out", top / place]
            run(capsys, "sweep", *asked, "--examples", tmp_path / "few.jsonl")
        asked = ["--base-url", good.url, "--model", "m", "--n-docs", "4", "--examples", tmp_path / "more.jsonl"]
        run(capsys, "mitigate", *asked, "--methods", "reversed", "--out", top / "mitigate")
        assert run(capsys, "check", *asked, "--out", top / "check")[0] == 7
    return top


@pytest.mark.full
def test_all_results_are_listed_by_what_they_asked_and_lead_to_their_pages(results, capsys):
    found = {row.folder: row for row in rows(results)}
    assert {name: row.kind for name, row in found.items()} == {
        "a/right": "sweep", "wrong": "sweep", "mitigate": "mitigate", "check": "check",
    }  # fmt: skip
    assert (found["check"].outcome, found["check"].sweep.mean) == ("not enough evidence", 100)
    assert found["wrong"].points == "12.5,100.0 37.5,100.0 62.5,100.0 87.5,100.0"
    assert found["mitigate"].outcome.endswith("(reversed): keep the model unchanged.")
    assert run(capsys, "view", results)[0] == 0
    page = (results / "index.html").read_text()
    of = [f"Task kv, {n} examples, 4 documents" for n in (3, 12, 24)]
    assert sorted(re.findall("<h2>(.*?)</h2>", page)) == sorted(of)
    links = re.findall(r'<a href="([^"]+)"', page)
    assert len(links) == 4 and all((results / unquote(link)).is_file() for link in links)
    assert run(capsys, "view", results)[0] == 0  # its own page is written anew
    copytree(results / "wrong", results / "z")
    copytree(results / "wrong", results / "mlartifacts" / "0")
    assert {row.folder for row in rows(results)} == found.keys()


def test_prompts_that_were_filled_are_told_by_their_length(results):
    (row,) = (row for row in rows(results) if row.folder == "check")
    filled = SimpleNamespace(
        **{name: getattr(row.sweep, name) for name in ("task", "n_docs", "n_examples", "gap", "label", "settings")}
    )
    filled.examples_digest, filled.filled = "another", SimpleNamespace(tokens=1024)
    titles = [group.title for group in group_by_question([row, row._replace(sweep=filled)])]
    assert sorted(titles) == ["Task kv, 24 examples, 1,024 tokens", "Task kv, 24 examples, 4 documents"]


def test_what_cannot_be_viewed_is_said(results, capsys, tmp_path, caplog):
    assert f"{tmp_path / 'nothing'}: " in fails(capsys, "view", tmp_path / "nothing")
    (results / "a" / "index.html").write_text("<p>mine")
    assert f"{results / 'a' / 'index.html'}: " in fails(capsys, "view", results / "a")
    write_json(results / "wrong" / "sweep.json", {"task": "kv"})
    for name, place in {"pipe": "", "zero": "/dev/zero"}.items():
        (results / name).mkdir()
        if place:
            (results / name / "sweep.json").symlink_to(place)
        else:
            os.mkfifo(results / name / "sweep.json")
    found = [row.folder for row in rows(results)]
    assert not {"wrong", "pipe", "zero"}.intersection(found) and caplog.text.count("left out: ") == 3
