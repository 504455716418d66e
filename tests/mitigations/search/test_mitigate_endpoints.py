"""`mitigate` at an endpoint: which mitigations it tries there, what they cost, and how it goes on."""

import json

import pytest
from answerers import USAGE, lost_in_the_middle
from endpoint import Endpoint, served
from examples import kv_example

from posgap.data.reading import write_examples
from posgap.foundation.errors import PosgapError
from posgap.generation import openai
from posgap.generation.served import EndpointChanged
from posgap.measurement.predictions import read_predictions
from posgap.measurement.sweeps import read_sweep
from posgap.mitigations.search.report import read_mitigate
from posgap.options.mitigate import MitigateConfig
from posgap.options.sweep import SweepConfig
from posgap.verbs.mitigate import mitigate
from posgap.verbs.sweep import sweep_model


@pytest.fixture
def endpoint(monkeypatch):
    """One that loses what stands in the middle of three, and counts tokens."""
    monkeypatch.setattr(openai, "FIRST_WAIT", 0.002)

    def answer(text, times):
        if endpoint.broken(text):
            return 500, {}, "broken"
        choice = {"message": {"content": lost_in_the_middle(text)}, "finish_reason": "stop"}
        return 200, {}, json.dumps({"choices": [choice], "usage": USAGE, "model": endpoint.model})

    endpoint = Endpoint(misbehave=answer)
    endpoint.broken, endpoint.model = lambda text: False, "m-1"
    with served(endpoint):
        yield endpoint


@pytest.fixture
def config(endpoint, tmp_path, monkeypatch):
    monkeypatch.setenv("POSGAP_RETRIES", "0")
    write_examples(tmp_path / "e.jsonl", [kv_example(i, 3) for i in range(48)])
    return MitigateConfig(
        examples=tmp_path / "e.jsonl",
        model="m",
        out=tmp_path / "found",
        backend="openai",
        base_url=endpoint.url,
        n_docs=3,
        concurrency=1,
        budget="1h",
        methods=["lpes", "reordering", "permutation", "reversed", "fewer"],
    )


def said(swept):
    return [row["response"] for row in read_predictions(swept)]


@pytest.mark.full
def test_at_an_endpoint_mitigations_of_prompts_are_compared_by_tokens_and_calls(config, endpoint, tmp_path):
    out = mitigate(config)
    result = read_mitigate(out)
    by_name = {each.name: each for each in result.found}
    assert by_name.keys() == set(config.methods) and result.elsewhere == "openai"
    assert {each.name for each in result.measured_outcomes} == {"reordering", "permutation", "reversed"}
    assert "changes the model itself" in by_name["lpes"].reason and by_name["lpes"].tried == 0

    assert result.base_gap == 100
    reordered, voted = by_name["reordering"].measured, by_name["permutation"].measured
    assert (reordered.mean, reordered.gap, reordered.calls, reordered.tokens) == (100, 0, 1, 1)
    n_orders = by_name["permutation"].settings["orders"]
    assert (voted.calls, voted.tokens, voted.relative_cost, voted.cost) == (n_orders, n_orders, n_orders, None)
    taken = by_name[result.choice]
    assert taken.name == "reordering" and "takes one call, as before, 1.00 times the tokens" in taken.gains
    assert "gap 0 by construction" in taken.gains and taken.code.startswith("def reorder(passages)")
    assert not taken.command and not taken.narrows
    assert by_name["fewer"].reason.startswith("goes by the order of a retriever")
    page = (out / "mitigate.html").read_text()
    assert (
        f"{n_orders} calls in place of one, {n_orders}.00 times the tokens" in page
        and "Another program has the model" in page
    )

    base = read_sweep(out / "sweeps" / "base")
    assert base.spent.prompts == 24 * 3 and base.served.models == ("m-1",)
    alike = {"model": "m", "n_docs": 3, "backend": "openai", "base_url": endpoint.url}
    settings = by_name["reordering"].settings
    asked_by = {"mitigation": "reordering", "mitigation_settings": settings}
    swept = sweep_model(SweepConfig(examples=out / "held_out.jsonl", out=tmp_path / "swept", **alike, **asked_by))
    assert said(swept) == said(out / "sweeps" / "reordering")
    assert read_sweep(swept).accuracy == read_sweep(out / "sweeps" / "reordering").accuracy


def test_an_endpoint_that_fails_ends_it_and_what_was_tried_is_not_asked_again(config, endpoint):
    alone = config.model_copy(update={"methods": ["reversed"]})
    asked, half = [], 24 * 3
    endpoint.broken = lambda text: asked.append(text) or len(asked) == half + 3  # once, as `reversed` is tried
    with pytest.raises(PosgapError, match="m: reversed: 1 of 24 .*--max-unanswered"):
        mitigate(alone)
    assert len(asked) == 2 * half
    assert [each.name for each in read_mitigate(mitigate(alone)).measured_outcomes] == ["reversed"]
    assert asked.count(asked[half + 2]) >= 2 and len(asked) == 2 * half + 1 + 2 * half


def test_an_endpoint_that_becomes_another_is_not_compared_with_what_it_was(config, endpoint):
    alone, seen = config.model_copy(update={"methods": ["reversed"]}), []
    endpoint.broken = lambda text: seen.append(text) or setattr(endpoint, "model", f"m-{1 + (len(seen) > 140)}")
    with pytest.raises(EndpointChanged, match=" m-1 to m-2.*--identity any"):
        mitigate(alone)
    endpoint.broken = lambda text: False
    with pytest.raises(EndpointChanged, match=" m-1 to m-2"):
        mitigate(alone)


def test_where_no_mitigation_is_for_an_endpoint_that_is_said(config, endpoint):
    with pytest.raises(PosgapError, match="^m: .*: lpes: "):
        mitigate(config.model_copy(update={"methods": ["lpes"]}))
