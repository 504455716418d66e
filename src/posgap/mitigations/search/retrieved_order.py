"""Tests mitigations in a retriever's own order of passages, which is what an application uses."""

from collections.abc import Sequence

import numpy as np

from posgap.measurement import statistics
from posgap.measurement.evidence import Evidence
from posgap.measurement.predictions import read_predictions
from posgap.mitigations.search.report import MisplacedQuestion, RetrievedGain, RetrievedOrder
from posgap.tasks.examples import AnyExample
from posgap.tasks.rag import prompt_passages
from posgap.tasks.task import AS_RETRIEVED


def compare_to_retrieved(mitigated: Evidence, base: Evidence, measured: int) -> RetrievedGain:
    """Compares a mitigation with the unmodified model, both as retrieved, on the same examples in the same order. The
    interval is one of `measured` that hold together (Bonferroni)."""
    new = mitigated.baselines[AS_RETRIEVED.name].scores
    old = base.baselines[AS_RETRIEVED.name].scores
    won = base.sample.average(new - old)
    gain, gain_ci95 = statistics.paired_difference(won, np.zeros_like(won), statistics.EACH_END / measured)
    return RetrievedGain(
        accuracy=float(100 * new.mean()),
        gain=gain,
        gain_ci95=gain_ci95,
        won=int((new > old).sum()),
        lost=int((new < old).sum()),
    )


def summarize_retrieved(base: Evidence, examples: Sequence[AnyExample], n_docs: int) -> RetrievedOrder:
    """Returns the model's figures in the retriever's order, and which of the examples position costs."""
    scores = base.baselines[AS_RETRIEVED.name].scores
    figures = base.sweep.baselines[AS_RETRIEVED.name]
    said = {row["id"]: row["response"] for row in read_predictions(base.path) if row.get("baseline")}
    moved = []
    for example, by_placement, score in zip(examples, base.scores, scores, strict=True):
        if score >= by_placement.max():
            continue
        passages = enumerate(prompt_passages(example, n_docs), start=1)
        moved.append(
            MisplacedQuestion(
                id=example.id,
                question=example.question,
                ranks=[rank for rank, passage in passages if passage.relevant],
                right_at=[base.sweep.placement_names[at] for at in np.flatnonzero(by_placement > score)],
                response=said[example.id],
            )
        )
    return RetrievedOrder(
        accuracy=figures.accuracy,
        ci95=figures.ci95,
        best_over=figures.best_over,
        best_over_ci95=figures.best_over_ci95,
        moved=sorted(moved, key=lambda each: -len(each.right_at)),
    )
