"""A sweep as a section of a model card: Hugging Face metadata (`model-index`) and a table."""

from pathlib import Path

from huggingface_hub import EvalResult, ModelCardData

from posgap import __version__
from posgap.foundation.files import write_text
from posgap.foundation.tables import markdown
from posgap.measurement.summary import summary_text
from posgap.measurement.sweeps import Sweep
from posgap.tasks.positions import format_positions

TAGS = ["posgap", "position-bias", "long-context"]


def write_model_card(sweep: Sweep, path: Path) -> None:
    """Writes `model_card.md`, to be put into a model's README."""
    write_text(path, model_card(sweep))


def model_card(sweep: Sweep) -> str:
    """Writes metadata and a section of the figures, which are in points, 0 to 100."""
    data = ModelCardData(model_name=sweep.label, eval_results=results(sweep), tags=TAGS)
    accuracy = zip(sweep.placement_names, sweep.accuracy, sweep.ci95)
    rows = [
        ("gap, best minus worst position", sweep.gap, sweep.gap_ci95),
        ("mean over positions", sweep.mean, sweep.mean_ci95),
        *((f"baseline {name}", figures.accuracy, figures.ci95) for name, figures in sweep.baselines.items()),
        *((f"{name} pairs", figures.accuracy, figures.ci95) for name, figures in sweep.by_category.items()),
        *((f"gold at {name}", value, interval) for name, value, interval in accuracy),
    ]
    choices = sweep.choices
    if choices:
        rows += [("same item in every order", choices.consistency, choices.consistency_ci95)]
        rows += zip((f"{slot} chosen" for slot in choices.slots), choices.shares, choices.shares_ci95)
    cells = [[name, f"{value:.1f}", f"{low:.1f} to {high:.1f}"] for name, value, (low, high) in rows]
    return f"""---
{data.to_yaml()}
---

{position_gap(sweep)}
{markdown(["", "points", "95 % interval"], cells)}

Examples `{sweep.examples_digest[:16]}`, prompts `{sweep.prompt_digest[:16]}` (sha256).
"""


def position_gap(sweep: Sweep) -> str:
    """Writes the section's head: what was measured, and the result, in words."""
    return f"""## Position gap

How much accuracy depends on where in the prompt the answer lies: {sweep.sample_text} of the task \
`{sweep.task}`, {sweep.n_docs} documents each, measured by posgap {__version__}.

{" ".join(summary_text(sweep))}
"""


def results(sweep: Sweep) -> list[EvalResult]:
    """The figures of a sweep in `model-index`."""
    figures = {
        "position_gap": ("Position gap", sweep.gap),
        sweep.metric: ("Mean over positions", sweep.mean),
        "worst_position": (f"Worst position ({format_positions(sweep.worst.placement)})", sweep.worst.accuracy),
    }
    return [
        EvalResult(
            task_type="question-answering",
            task_name="Long-context question answering",
            dataset_type=f"posgap-{sweep.task}",
            dataset_name=f"{sweep.task}, {sweep.n_docs} documents, {sweep.sample_text}",
            dataset_revision=sweep.examples_digest,
            metric_type=kind,
            metric_name=name,
            metric_value=round(value, 2),
        )
        for kind, (name, value) in figures.items()
    ]
