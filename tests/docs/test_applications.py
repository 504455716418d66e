"""The applications of docs/applications.md, in LangChain and with OpenAI's SDK, before and after what `mitigate` says.
`make frameworks` runs this."""

import importlib.util
import json
import random
import re
from pathlib import Path

import pytest
from endpoint import Endpoint, served

from posgap.cli.main import main
from posgap.measurement.sweeps import read_sweep
from posgap.mitigations.search.report import read_mitigate

PAGE = (Path(__file__).parents[2] / "docs" / "applications.md").read_text("utf-8")
DOCS = 8
# Of 100 questions, how many have their passage at each rank: a retriever that is good, and not perfect.
RANKS = [0] * 20 + [1] * 20 + [2] * 30 + [3] * 20 + [4] * 10


def block(name):
    (found,) = [text for text in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if text.startswith(f"# {name}.py")]
    return found


def write_log(file, count=60):
    """Writes questions whose passage stands at a rank that its retriever gave it."""
    drawn, rows = random.Random(4), []
    for number in range(count):
        gold, rank = f"The river {number} is {100 + number} km long.", drawn.choice(RANKS)
        texts = [f"The hill {number}-{other} is {500 + other} m high." for other in range(DOCS - 1)]
        texts.insert(rank, gold)
        passages = [{"text": text, "id": f"{number}-{at}", "relevant": text == gold} for at, text in enumerate(texts)]
        answers = [f"{100 + number} km"]
        rows.append({"question": f"How long is the river {number}?", "answers": answers, "passages": passages})
    file.write_text("\n".join(map(json.dumps, rows)))


def read_ends(text, times=0):
    """A model that reads the first two notes and the last two alone."""
    notes, _, question = text.rpartition("\n\nQuestion: ")
    texts, river = notes.split("\n\n"), re.search(r"river \d+\b", question)[0]
    lengths = [re.search(r"\d+ km", each)[0] for each in texts[:2] + texts[-2:] if f"The {river} is" in each]
    said = {"role": "assistant", "content": lengths[0] if lengths else "It is not in the notes."}
    choice = {"index": 0, "message": said, "finish_reason": "stop"}
    usage = {"prompt_tokens": len(text) // 4, "completion_tokens": 5, "total_tokens": len(text) // 4 + 5}
    body = {"id": "c", "object": "chat.completion", "created": 0, "model": "served", "choices": [choice]}
    return 200, {"Content-Type": "application/json"}, json.dumps(body | {"usage": usage})


def call(*words):
    with pytest.raises(SystemExit) as ended:
        main(list(map(str, words)))
    assert ended.value.code == 0, words


@pytest.mark.full  # a comparison of mitigations takes seconds, and needs packages that posgap does not
@pytest.mark.parametrize(("name", "packages"), [("sdk_app", ["openai"]), ("chain_app", ["langchain_openai"])])
def test_an_application_is_measured_mended_and_measured_again(name, packages, tmp_path, monkeypatch):
    if not all(importlib.util.find_spec(each) for each in packages):
        pytest.skip(f"{packages[0]} is not installed here: `make frameworks` runs this with it")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    write_log(tmp_path / "log.jsonl")
    (tmp_path / f"{name}.py").write_text(block(name))
    asked = ["--examples", "log.jsonl", "--n-docs", DOCS]
    with served(Endpoint(misbehave=read_ends)) as endpoint:
        monkeypatch.setenv("OPENAI_BASE_URL", endpoint.url)
        call("sweep", f"python:{name}:answer", *asked, "--out", "before")
        before = read_sweep(tmp_path / "before")
        comparison = ["--task", "rag", *asked, "--budget", "10m", "--out", "found"]
        call("mitigate", "--model", f"python:{name}:answer", *comparison)
        found = read_mitigate(tmp_path / "found")
        taken = next(each for each in found.found if each.name == found.choice)
        (tmp_path / f"mended_{name}.py").write_text(taken.code)
        call("sweep", f"python:mended_{name}:mended", *asked, "--out", "after")
    after = read_sweep(tmp_path / "after")
    assert before.accuracy == [100, 100, 0, 0, 0, 0, 100, 100]
    knows_what_was_sent = "8 of 8 passages reach the model" in before.served.notes
    assert (knows_what_was_sent, before.spent is None) == (name == "sdk_app", name == "sdk_app")
    retrieved = [round(sweep.baselines["as-retrieved"].accuracy, 1) for sweep in (before, after)]
    assert taken.helps and retrieved == [55, 90], taken.name
    assert "as-retrieved: 55.0 (" in PAGE and "as-retrieved: 90.0 (" in PAGE
    assert f"from {name} import answer" in (tmp_path / "found" / "mitigate.html").read_text()
