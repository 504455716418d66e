"""A server that answers the same prompt in several ways: its noise is counted and said."""

import json
import logging

import pytest
from endpoint import Endpoint, served

from posgap.measurement.sweeps import read_sweep
from posgap.options.sweep import SweepConfig
from posgap.verbs.sweep import sweep_model

DOCS, N = 4, 12


@pytest.fixture
def asked(tmp_path):
    """A log whose retriever puts the relevant passage first, so that a position's prompt is the retriever's too."""
    rows = []
    for number in range(N):
        texts = [f"The river {number} is {100 + number} km long."]
        texts += [f"The hill {number}-{other} is {other} m high." for other in range(DOCS - 1)]
        passages = [{"text": text, "id": f"{number}-{at}", "relevant": not at} for at, text in enumerate(texts)]
        rows.append(
            {"question": f"How long is river {number}?", "answers": [f"{100 + number} km"], "passages": passages}
        )
    (tmp_path / "log.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return {"model": "m", "task": "rag", "examples": tmp_path / "log.jsonl", "n_docs": DOCS, "out": tmp_path / "out"}


@pytest.mark.parametrize(("wavering", "temperature", "expected"), [(5, 0, (N, 5)), (0, 0, (N, 0)), (5, 1, (0, 0))])
def test_a_prompt_with_two_answers_is_counted_and_said(asked, caplog, wavering, temperature, expected):
    def misbehave(text, times):
        if not times or not any(f"river {number}?" in text for number in range(wavering)):
            return None
        choice = {"index": 0, "message": {"role": "assistant", "content": "another answer"}, "finish_reason": "stop"}
        return 200, {}, json.dumps({"choices": [choice]})

    with served(Endpoint(answer=lambda text: "100 km", misbehave=misbehave)) as endpoint:
        caplog.set_level(logging.WARNING)
        config = SweepConfig(base_url=endpoint.url, temperature=temperature, concurrency=1, **asked)
        pace = read_sweep(sweep_model(config)).pace
    assert (pace.repeated, pace.differing) == expected
    said = [record.args[1:] for record in caplog.records if "noise" in record.msg]
    assert said == ([expected] if expected[1] else [])
