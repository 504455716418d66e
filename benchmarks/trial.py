"""How many answers a promotion asks again, and how many forgeries it finds: the table of docs/registry.md.

    python benchmarks/trial.py [--runs 400] [--quick] [--write]

Honest sweeps are those of `simulations.py rates` of a model that is right in 97 % at each position, and that the gate
admits beside a base as good. A forged one is of a model that is worse by 20 points at one position, where the fewest
wrong answers that it takes were written right, or all. Nothing is generated: each time other rows are drawn as
`promote` draws them, and a forged verdict is found where one of the drawn rows is forged. The last line is JSON.
"""

import argparse
import json
import random
import tempfile
import time
from pathlib import Path

import numpy as np
from report import write_table
from simulations import Gated, curve, outcomes

from posgap.foundation.files import write_json, write_jsonl
from posgap.foundation.tables import markdown
from posgap.gating.demands import Policy
from posgap.gating.rules import GateInputs
from posgap.gating.trial import DecidingEdits
from posgap.gating.verdict import asked_rules
from posgap.measurement.evidence import Evidence
from posgap.measurement.figures import summarize
from posgap.measurement.predictions import PREDICTIONS_FILE, read_predictions
from posgap.measurement.sample import Sample
from posgap.measurement.sweeps import SWEEP_FILE, PromptSettings, Sweep

SIZES = ((150, 5), (200, 5), (300, 10), (500, 20))
POLICY = Policy(max_unanswered=100, max_unclean=100)
ASKED = PromptSettings(prompt="p", template="", question="after", shuffle=0, max_new_tokens=4, decoding="greedy")
WORSE = 0.2  # of the forged model, at one position
DRAWS = 40  # of the rows of a forged sweep


def written(scores: np.ndarray, folder: Path) -> Evidence:
    """The sweep of these scores [E, P], as files."""
    placements = [[column + 1] for column in range(scores.shape[1])]
    contents = [f"{at:016x}" for at in range(len(scores))]
    figures = summarize(scores, placements, 0, ["single"] * len(placements), Sample(contents))
    named = {"task": "kv", "model": "m", "label": "m", "scaling": None, "metric": "em", "n_docs": len(placements)}
    digests = {"examples_digest": "e", "model_digest": "m", "ancestors": [], "prompt_digest": "p"}
    sweep = Sweep(**named, **figures, **digests, asked=ASKED, settings={})
    folder.mkdir(parents=True)
    write_json(folder / SWEEP_FILE, sweep.model_dump(mode="json"))
    rows = []
    for content, of_example in zip(contents, scores):
        for placement, score in zip(placements, of_example):
            said = {"id": content, "content": content, "placement": placement, "response": "said", "echo": False}
            rows.append(said | {"correct": bool(score)})
    write_jsonl(folder / PREDICTIONS_FILE, rows)
    return Evidence(folder)


def is_admitted(scores: np.ndarray, inputs: GateInputs) -> bool:
    sweep = inputs.candidate.relabel("forged")
    sweep.scores, sweep.correct = scores, scores
    edited = GateInputs(sweep, inputs.base)
    return all(rule.is_passed(limits, edited) for rule, limits in asked_rules(POLICY))


def forge(honest: np.ndarray, inputs: GateInputs, rng: np.random.Generator) -> tuple[np.ndarray, list[np.ndarray]]:
    """The scores of a model that is worse at one position, which the gate refuses, and two forgeries of them: with the
    fewest of its wrong answers there written right that the gate admits, and with all."""
    column = int(rng.integers(honest.shape[1]))
    own = honest.copy()
    own[rng.random(len(own)) < WORSE, column] = 0
    written_right = rng.permutation(np.flatnonzero(own[:, column] != honest[:, column]))
    for count in range(1, len(written_right) + 1):
        fewest = own.copy()
        fewest[written_right[:count], column] = 1
        if is_admitted(fewest, inputs):
            break
    return own, [fewest, honest]


def tried(n: int, placements: int, runs: int, folder: Path) -> dict[str, float]:
    """What stands in a row of the table: medians of honest sweeps, and how much is found of forgeries of them."""
    rng, asked_about = np.random.default_rng([n, placements]), asked_rules(POLICY)
    least, asked, seconds, rows_found, found = [], [], [], [], {0: [], 1: []}
    while len(least) < runs:
        cell, common, at = (
            Gated("flat", 0.97, placements, 10.0),
            rng.standard_normal(n),
            folder / f"{rng.integers(1e9)}",
        )
        honest, base = (outcomes(curve(cell), common, rng) for _ in range(2))
        inputs = GateInputs(written(honest, at / "honest"), written(base, at / "base"))
        if not is_admitted(honest, inputs):
            continue
        began = time.monotonic()
        edits = DecidingEdits(inputs, asked_about)
        seconds.append(time.monotonic() - began)
        least.append(min(edits.made_right))
        asked.append(len(edits.draw(read_predictions(inputs.candidate.path))[0]))
        own, forgeries = forge(honest, inputs, rng)
        for kind, forged in enumerate(forgeries):
            shown = GateInputs(written(forged, at / f"forged-{kind}"), inputs.base)
            of_forged, rows = DecidingEdits(shown, asked_about), read_predictions(shown.candidate.path)
            for seed in range(DRAWS):
                random.Random(seed).shuffle(rows)
                drawn = [(int(row["id"], 16), row["placement"][0] - 1) for row in of_forged.draw(rows)[0]]
                hits = sum(forged[cell] != own[cell] for cell in drawn)
                rows_found.append(hits / (forged != own).sum())
                found[kind].append(hits > 0)  # then all are asked, and its own answers do not let it in
    return {
        "edits": float(np.median(least)),
        "asked": float(np.median(asked)),
        "of": honest.size,
        "rows": round(100 * float(np.mean(rows_found)), 1),
        "verdicts": round(100 * min(float(np.mean(of_kind)) for of_kind in found.values()), 1),
        "seconds": round(float(np.median(seconds)), 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the smallest sweep alone")
    parser.add_argument("--write", action="store_true", help="keep the table, for `make tables`")
    parser.add_argument("--runs", type=int, default=20, help="sweeps of a size")
    options = parser.parse_args()
    figures, rows = {}, []
    with tempfile.TemporaryDirectory() as place:
        for n, placements in SIZES[:1] if options.quick else SIZES:
            seen = tried(n, placements, 2 if options.quick else options.runs, Path(place) / str(n))
            figures[f"{n} x {placements}"] = seen
            rows.append([f"{n} examples, {placements} positions", f"{seen['edits']:g}"])
            rows[-1] += [f"{seen['asked']:,.0f} of {seen['of']:,}", f"{seen['rows']:g} %", f"{seen['verdicts']:g} %"]
    columns = ["sweep, 97 % right", "edits that turn it", "asked again", "forged rows found", "forged verdicts found"]
    table = markdown(columns, rows)
    if options.write:
        write_table("trial", table)
    else:
        print(table)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
