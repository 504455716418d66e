"""Toys of the stages that take long, for a pipeline that is played often: how good a model is stands in its folder.

KFP's steps import this; `weekly.py` makes components of it.
"""

import gzip
import shutil
from pathlib import Path

import numpy as np

from posgap.data.reading import EXAMPLES_FILE, read_examples
from posgap.foundation.files import digest_path, read_json, read_jsonl, write_json, write_jsonl
from posgap.measurement.figures import summarize
from posgap.measurement.sample import Sample
from posgap.measurement.sweeps import PromptSettings, Sweep
from posgap.storage.lineage import ancestors
from posgap.tasks.content import content_key, examples_digest

SKILL = "skill.json"  # of a model's folder: its accuracy at each of five positions
BIASED = [0.98, 0.6, 0.3, 0.6, 0.9]


def record(out: Path, config: dict, *inputs: str) -> None:
    """The manifest of a toy stage: what its output goes back to, as a real one's says."""
    ancestors = {digest_path(Path(each)) for each in inputs}
    for each in inputs:
        manifest = Path(each) / "manifest.json"
        ancestors |= set(read_json(manifest)["ancestors"] if manifest.is_file() else ())
    write_json(out / "manifest.json", {"ancestors": sorted(ancestors), "config": config})


def check(examples: str, out: Path) -> None:
    """The toy of `validate`: the examples as they are."""
    out.mkdir()
    (out / EXAMPLES_FILE).write_bytes(gzip.compress(Path(examples).read_bytes(), mtime=0))
    record(out, {}, examples)


def train(examples: str, model: str, out: Path) -> None:
    """The toy of `distill`: a copy of the model that is as good as the first example says."""
    shutil.copytree(model, out, ignore=shutil.ignore_patterns("manifest.json"))
    _, first = next(read_jsonl(Path(examples) / EXAMPLES_FILE))
    write_json(out / SKILL, [first["skill"]] * 5)
    record(out, {"method": "r1", "model": model}, examples, model)


def measure(examples: str, model: str, out: Path) -> None:
    """The toy of `sweep`: outcomes drawn with the model's probabilities, always the same of one model.

    It says that an endpoint answered, whose responses nobody asks for again.
    """
    skill, asked, placements = Path(model) / SKILL, read_examples(Path(examples)), [[at + 1] for at in range(5)]
    probability = read_json(skill) if skill.is_file() else BIASED
    correct = np.random.default_rng(0).random((len(asked), 5)) < probability
    sweep = Sweep(
        task="kv",
        model=model,
        label="toy",
        scaling=None,
        metric="em",
        n_docs=5,
        **summarize(correct, placements, 0, sample=Sample.from_examples(asked)),
        examples_digest=examples_digest(asked, 5, 0),
        model_digest=digest_path(Path(model)),
        ancestors=ancestors(model),
        prompt_digest="p",
        asked=PromptSettings(prompt="p", template="", question="after", shuffle=0, max_new_tokens=4, decoding="greedy"),
        settings={"backend": "openai"},
    )
    out.mkdir()
    write_json(out / "sweep.json", sweep.model_dump(mode="json"))
    rows = (
        {
            "id": each.id,
            "content": content_key(each),
            "placement": placement,
            "response": each.answers[0] if right[at] else "something else",
            "correct": bool(right[at]),
            "echo": False,
        }
        for each, right in zip(asked, correct)
        for at, placement in enumerate(placements)
    )
    write_jsonl(out / "predictions.jsonl", rows)
