"""Toys of the stages that take long, for a pipeline that is played often: how good a model is stands in its folder.

KFP's steps import this; `weekly.py` makes components of it.
"""

import json
import shutil
from pathlib import Path

import numpy as np

from posgap.files import digest, read_json, write_json, write_jsonl
from posgap.measurement.sweeps import Asked, Sweep, summarize

SKILL = "skill.json"  # of a model's folder: its accuracy at each of five positions
BIASED = [0.98, 0.6, 0.3, 0.6, 0.9]


def record(out: Path, config: dict, *inputs: str) -> None:
    """The manifest of a toy stage: what its output goes back to, as a real one's says."""
    ancestors = {digest(Path(each)) for each in inputs}
    for each in inputs:
        manifest = Path(each) / "manifest.json"
        ancestors |= set(read_json(manifest)["ancestors"] if manifest.is_file() else ())
    write_json(out / "manifest.json", {"ancestors": sorted(ancestors), "config": config})


def check(examples: str, out: Path) -> None:
    """The toy of `validate`: the examples as they are."""
    out.mkdir()
    shutil.copyfile(examples, out / "examples.jsonl")
    record(out, {}, examples)


def train(examples: str, model: str, out: Path) -> None:
    """The toy of `distill`: a copy of the model that is as good as the first example says."""
    shutil.copytree(model, out, ignore=shutil.ignore_patterns("manifest.json"))
    first = json.loads((Path(examples) / "examples.jsonl").read_text().splitlines()[0])
    write_json(out / SKILL, [first["skill"]] * 5)
    record(out, {"method": "r1", "model": model}, examples, model)


def measure(model: str, out: Path) -> None:
    """The toy of `sweep`: outcomes drawn with the model's probabilities, always the same of one model."""
    skill, examples, placements = Path(model) / SKILL, range(200), [[position + 1] for position in range(5)]
    probability = read_json(skill) if skill.is_file() else BIASED
    correct = np.random.default_rng(0).random((len(examples), 5)) < probability
    sweep = Sweep(
        task="kv",
        model=model,
        label="toy",
        scaling=None,
        metric="em",
        n_docs=5,
        **summarize(correct, placements, 0),
        examples_digest="e",
        model_digest=digest(Path(model)),
        prompt_digest="p",
        asked=Asked(prompt="p", template="", question="after", shuffle=0, max_new_tokens=4, decoding="greedy"),
        settings={},
    )
    out.mkdir()
    write_json(out / "sweep.json", sweep.model_dump(mode="json"))
    rows = (
        {"id": f"e{n}", "content": f"{n:016x}", "placement": placement, "response": "", "correct": bool(correct[n, at])}
        for n in examples
        for at, placement in enumerate(placements)
    )
    write_jsonl(out / "predictions.jsonl", rows)
