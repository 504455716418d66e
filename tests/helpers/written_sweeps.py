"""Sweeps written by hand, and what gates and the registry make of them."""

import shutil
from pathlib import Path
from zlib import crc32

import numpy as np
from safetensors.numpy import load_file, save_file

from posgap.data.reading import write_examples
from posgap.foundation.files import digest_path, write_json, write_jsonl
from posgap.gating.verdict import read_verdict
from posgap.measurement.figures import summarize
from posgap.measurement.sample import Sample
from posgap.measurement.sweeps import PromptSettings, Sweep
from posgap.options.gate import GateConfig
from posgap.options.promote import PromoteConfig
from posgap.storage.lineage import ancestors
from posgap.tasks.content import content_key, examples_digest
from posgap.tasks.examples import Document, Example, KVExample
from posgap.tasks.placements import category
from posgap.tasks.registry import TASKS
from posgap.tracking import registry
from posgap.verbs.gate import judge_and_write
from posgap.verbs.promote import promote

N = 200


ASKED = PromptSettings(prompt="p", template="", question="after", shuffle=0, max_new_tokens=4, decoding="greedy")


def example(number, n_gold=1, id=None):
    """An example that `write_sweep` sweeps: key-value records, or a question of two hops."""
    if n_gold == 1:
        records = [(f"k{number}-{i}", f"v{number}-{i}") for i in range(5)]
        (key, value), id = records[0], id or f"e{number}"
        return KVExample(id=id, question=key, answers=[value], key=key, value=value, records=records)
    documents = [Document(title=f"{number}-{i}", text=f"text {number}-{i}") for i in range(5)]
    told = {"gold": documents[:n_gold], "distractors": documents[n_gold:]}
    return Example(id=id or f"e{number}", question=f"q{number}", answers=[f"v{number}"], **told)


def write_sweep(
    folder,
    probability,
    model="m",
    seed=0,
    examples="",
    placements=None,
    asked=ASKED,
    order=range(N),
    n_docs=5,
    settings=None,
):
    """A sweep over five placements, the positions 1 to 5, whose outcomes have these probabilities,
    [5] or [N, 5]. The examples stand in its file in this order. A model's folder that does not say otherwise was made
    from the model m.
    """
    if Path(model).is_dir() and not (Path(model) / "manifest.json").exists():
        write_json(Path(model) / "manifest.json", {"ancestors": ["m"]})
    rng = np.random.default_rng(seed)
    placements = placements or [[i + 1] for i in range(5)]
    correct = (rng.random((N, np.shape(probability)[-1])) < np.asarray(probability))[list(order), : len(placements)]
    task = TASKS["kv" if len(placements[0]) == 1 else "multihop-cot"]
    swept = [example(e, len(placements[0]), f"e{at}") for at, e in enumerate(order)]
    sample = Sample.from_examples(swept)
    sweep = Sweep(
        task=task.name,
        model=str(model),
        label="m",
        scaling=None,
        metric="em",
        n_docs=n_docs,
        **summarize(correct, placements, 0, [category(placement) for placement in placements], sample),
        examples_digest=examples or examples_digest(swept, n_docs, asked.shuffle),
        model_digest=digest_path(model) if model != "m" else "",
        ancestors=ancestors(model),
        prompt_digest="p",
        asked=asked,
        settings=settings or {},
    )
    folder.mkdir()
    write_json(folder / "sweep.json", sweep.model_dump(mode="json"))
    write_jsonl(
        folder / "predictions.jsonl",
        (
            {
                "id": each.id,
                "content": content_key(each),
                "placement": p,
                "response": task.target.format(answer=each.answers[0]) if correct[at, i] else "said",
                "correct": bool(correct[at, i]),
                "echo": False,
            }
            for at, each in enumerate(swept)
            for i, p in enumerate(placements)
        ),
    )
    write_examples(folder / "examples.jsonl", swept)
    write_json(folder / "manifest.json", {"inputs": {"examples": {"path": str(folder / "examples.jsonl")}}})
    return folder


def decide(tmp_path, candidate, base, **options):
    verdict = read_verdict(
        judge_and_write(GateConfig(out=tmp_path / "gate", candidate=candidate, base=base, **options))
    )
    return verdict, {rule.name: rule.passed for rule in verdict.rules}


def promotion(tmp_path, name, model, base, probability=0.995, again="", gated_for="tiny"):
    swept = write_sweep(tmp_path / f"sweep-{name}{again}", [probability] * 5, model=model)
    gated(tmp_path, f"{name}{again}", swept, base, name=gated_for)
    return PromoteConfig(
        out=tmp_path / f"promote-{name}{again}",
        model=str(model),
        gate=tmp_path / f"gate-{name}{again}",
        sweep=swept,
        name="tiny",
    )


def copy_of(model_folder, folder):
    """A model that hardly differs from another one: one weight is changed by a hair, by the folder's name."""
    shutil.copytree(model_folder, folder)
    weights = folder / "model.safetensors"
    tensors = load_file(weights)
    tensors["model.norm.weight"] *= np.float32(1 + crc32(folder.name.encode()) % 1000 / 1e6)
    save_file(tensors, weights, metadata={"format": "pt"})
    return folder


def gated(tmp_path, word, swept, base, **options):
    """A verdict by the policy of its name, else by one that lets a version in without a trial, since nobody swept."""
    if not (options.get("name") and registry.policy(options["name"])):
        options["allow"] = [*options.get("allow", ()), "trial"]
    return judge_and_write(GateConfig(out=tmp_path / f"gate-{word}", candidate=swept, base=base, **options))


def promoted(tmp_path, name, model, swept, folder):
    return promote(
        PromoteConfig(out=tmp_path / f"promote-{name}", model=str(model), gate=folder, sweep=swept, name="tiny")
    )


LAX = {"max_gap": 100, "mean_tolerance": 100, "advantageous_tolerance": 100, "min_mean": 0, "least_examples": 1}
LAX |= {"least_placements": 2, "max_unclean": 100}  # an untrained model writes up to the limit
