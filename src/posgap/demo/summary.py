"""The summary that the demo prints and writes at its end."""

from pathlib import Path
from typing import Any

from posgap.gating.verdict import read_verdict
from posgap.measurement.sweeps import Sweep, read_sweep
from posgap.storage.inputs import read_manifest
from posgap.tracking import registry
from posgap.tracking.champions import CHAMPION


def steps(run: Path) -> dict[str, Path]:
    """The output folders of a run's steps by name.

    A step that was reused has its folder in an earlier run. So the folders are followed from the gate's backwards:
    each one's manifest names its inputs.
    """
    (gate,) = run.glob("**/gate*/out")
    candidate = _input(gate, "candidate")
    base = _input(gate, "base")
    model = Path(read_sweep(candidate).model)
    sweep_base = _input(base, "sweeps.1")
    folders = {
        "validate_train": _input(model, "examples"),
        "validate_eval": _input(sweep_base, "examples"),
        "sweep_base": sweep_base,
        "merge_base": base,
        "teacher": _input(model, "responses"),
        "distill": model,
        "sweep_candidate": _input(candidate, "sweeps.1"),
        "merge_candidate": candidate,
        "gate": gate,
    }
    promoted = list(run.glob("**/promote*/out"))
    return folders | ({"promote": promoted[0]} if promoted else {})


def _input(folder: Path, name: str) -> Path:
    return Path(read_manifest(folder)["inputs"][name]["path"])


def summarize(folders: dict[str, Path], registered_name: str, seconds: dict[str, float]) -> dict[str, Any]:
    """The content of `summary.json`, from the folders of a run's steps.

    `registry` is null if the gate did not admit the model.
    """
    verdict = read_verdict(folders["gate"])
    champion = registry.champion(registered_name) if verdict.passed else None
    return {
        "base": _sweep_figures(read_sweep(folders["merge_base"])),
        "candidate": _sweep_figures(read_sweep(folders["merge_candidate"])),
        "gate": verdict.model_dump(mode="json", include={"outcome", "passed", "rules"}),
        "registry": champion and {"name": champion.name, "version": str(champion.version), "alias": CHAMPION},
        "seconds": seconds | {stage: read_manifest(folder)["seconds"] for stage, folder in folders.items()},
    }


def _sweep_figures(sweep: Sweep) -> dict[str, Any]:
    kept = sweep.model_dump(mode="json", include={"accuracy", "mean", "gap", "gap_ci95", "n_examples"})
    return {"positions": sweep.positions, **kept}


def table(summary: dict[str, Any]) -> str:
    """The summary as aligned text."""
    base = summary["base"]
    candidate = summary["candidate"]
    shown = [position for position in (1, 5, 10, 15, 20) if position in base["positions"]]

    def figures_line(name: str, figures: dict[str, Any]) -> str:
        values = dict(zip(figures["positions"], figures["accuracy"]))
        cells = "".join(f"{values[position]:8.1f}" for position in shown)
        low, high = figures["gap_ci95"]
        return f"{name:<16}{cells}{figures['mean']:8.1f}{figures['gap']:8.1f}   ({low:.1f} to {high:.1f})"

    columns = "".join(f"{f'pos {position}':>8}" for position in shown)
    head = f"{'accuracy, %':<16}{columns}{'mean':>8}{'gap':>8}   95 % of the gap"
    rules = [
        f"  {rule['outcome'].rjust(6)}  {rule['value']:7.1f}  {rule['sentence']}" for rule in summary["gate"]["rules"]
    ]
    registered = summary["registry"]
    verdict = (
        f"{registered['name']} version {registered['version']} is the {registered['alias']}"
        if registered
        else f"{summary['gate']['outcome']}: no alias was moved"
    )
    return "\n".join(
        [
            "",
            head,
            "-" * len(head),
            figures_line("base", base),
            figures_line("Pos2Distill-R1", candidate),
            "",
            f"gate, on {base['n_examples']} examples a position",
            *rules,
            f"  {verdict}",
            "",
        ]
    )
