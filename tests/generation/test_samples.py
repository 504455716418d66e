"""Several samples of each prompt at a temperature: what is asked, kept and counted, and how sure that makes."""

import json
import random

import numpy as np
import pytest
from endpoint import Endpoint, retrieve, served
from llamas import llama, sweep_options
from pydantic import ValidationError

from posgap.foundation.errors import PosgapError
from posgap.foundation.files import read_jsonl
from posgap.gating.evidence import wrong_figure
from posgap.generation.generator import Sampling, complete
from posgap.generation.transformers import TransformersGenerator
from posgap.measurement import statistics
from posgap.measurement.evidence import Evidence
from posgap.measurement.sweeps import read_sweep
from posgap.models.loading import save_model
from posgap.options.merge import MergeConfig
from posgap.options.sweep import SweepConfig
from posgap.tasks.prompts import Prompt
from posgap.verbs.merge import merge
from posgap.verbs.sweep import sweep_model

SAMPLED = {"samples": 4, "temperature": 0.7, "metric": "contains_any"}


class Drawing(Endpoint):
    """Answers rightly in half of the seeds."""

    def reply(self, body, headers):
        self.right = random.Random(body["seed"]).random() < 0.5
        return super().reply(body, headers)


@pytest.fixture
def endpoint():
    server = Drawing()
    server.answer = lambda text: retrieve(text) if server.right else "no idea"
    with served(server):
        yield server


def options(tmp_path, server, **more) -> dict:
    return sweep_options(tmp_path, "tiny", backend="openai", base_url=server.url, concurrency=1, **SAMPLED | more)


def test_the_share_of_right_samples_counts_and_predictions_have_them_all(tmp_path, endpoint):
    out = sweep_model(SweepConfig(out=tmp_path / "out", **options(tmp_path, endpoint)))
    swept, rows = read_sweep(out), [row for _, row in read_jsonl(out / "predictions.jsonl")]
    assert len(rows) == len(endpoint.bodies) == 6 * 8 * 4 == swept.outcomes.prompts
    assert {body["temperature"] for body in endpoint.bodies} == {0.7}
    assert len({body["seed"] for body in endpoint.bodies}) == len(rows)  # no two prompts or samples draw alike
    assert [row.get("sample", 0) for row in rows[:8]] == [0, 1, 2, 3] * 2 and "sample" not in rows[0]
    at_first = [row["correct"] for row in rows if row["placement"] == [1]]
    assert swept.accuracy[0] == pytest.approx(100 * np.mean(at_first)) and 20 < swept.mean < 80
    assert (swept.n_examples, swept.asked.samples, swept.asked.decoding) == (6, 4, "temperature 0.7, 4 samples")
    assert not wrong_figure(Evidence(out))
    (lost, *_), file = rows, out / "predictions.jsonl"
    for damaged in ([*rows, lost], rows[1:], [lost | {"sample": 4}, *rows[1:]]):
        file.write_text("".join(json.dumps(row) + "\n" for row in damaged))
        with pytest.raises(PosgapError, match=f"^{out}: predictions "):
            Evidence(out)


def test_an_interrupted_sweep_draws_the_missing_samples_and_none_twice(tmp_path, endpoint):
    config = SweepConfig(out=tmp_path / "out", **options(tmp_path, endpoint))
    endpoint.misbehave = lambda text, times: (401, {}, "{}") if len(endpoint.bodies) > 70 else None
    with pytest.raises(PosgapError, match="401"):
        sweep_model(config)
    endpoint.misbehave = lambda text, times: None
    rows = [row for _, row in read_jsonl(sweep_model(config) / "predictions.jsonl")]
    assert len(rows) == 192 == len({(row["id"], *row["placement"], row.get("sample", 0)) for row in rows})
    assert len(endpoint.bodies) == 193 == len({body["seed"] for body in endpoint.bodies})


def test_parts_of_a_sampled_sweep_are_merged_as_if_it_had_not_been_split(tmp_path, endpoint):
    asked = options(tmp_path, endpoint)
    whole = sweep_model(SweepConfig(out=tmp_path / "whole", **asked))
    parts = [sweep_model(SweepConfig(out=tmp_path / f"{i}", shard=f"{i}/2", **asked)) for i in (1, 2)]
    merged = merge(MergeConfig(sweeps=parts, out=tmp_path / "merged"))
    assert (merged / "predictions.jsonl").read_bytes() == (whole / "predictions.jsonl").read_bytes()
    assert read_sweep(merged).accuracy == read_sweep(whole).accuracy


def test_a_local_model_draws_each_sample_anew(tmp_path, tokenizer):
    generator = TransformersGenerator(llama(), tokenizer, 300)
    prompts = [Prompt("", [5, 6, 7], sample) for sample in range(24)]
    sampling = Sampling(5, temperature=1.0)
    groups = [prompts[:12], prompts[12:]]
    drawn = {tuple(completion.token_ids) for _, _, completion in generator.generate(groups, sampling)}
    assert len(drawn) > 6
    assert len({tuple(answer.token_ids) for answer in complete(generator, prompts, Sampling(5))}) == 1
    assert sampling.seed_of(prompts[0]) != sampling.seed_of(prompts[1]) and Sampling(5, seed=3).seed_of(prompts[1]) == 3


def test_greedy_responses_are_not_repeated_and_drawn_ones_say_so(tmp_path, tokenizer):
    paths = {"examples": "e", "model": "m", "out": "o"}
    with pytest.raises(ValidationError, match="`temperature`"):
        SweepConfig(**paths, samples=2)
    save_model(llama(), tokenizer, tmp_path / "model")
    drawn = sweep_options(tmp_path, tmp_path / "model", temperature=1.0, limit=1)
    out = sweep_model(SweepConfig(out=tmp_path / "out", **drawn))
    assert read_sweep(out).asked.decoding == "temperature 1"


@pytest.mark.parametrize("samples", [2, 8])
def test_intervals_of_pass_rates_cover_since_an_example_counts_once(samples):
    """Difficulties vary by example: counting every sample as a case of its own claims to know more than it does."""
    rng, n, runs = np.random.default_rng(0), 60, 1500
    rates = rng.beta(0.6, 0.3, size=(n, runs))
    passed = rng.binomial(samples, rates)

    def coverage(intervals):
        return np.mean((intervals[:, 0] <= 100 * 2 / 3) & (intervals[:, 1] >= 100 * 2 / 3))

    as_cases = np.stack([np.repeat([1.0, 0.0], [k, n * samples - k]) for k in passed.sum(axis=0)], axis=1)
    assert 0.935 < coverage(statistics.mean_interval(passed / samples)) < 0.975
    assert coverage(statistics.mean_interval(as_cases)) < 0.90
