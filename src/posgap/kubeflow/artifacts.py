"""Fills in what a KFP run page shows of a stage: metrics, pages, and the metadata of artifacts."""

import base64
import html
import json
import shutil
from pathlib import Path
from typing import Any

from posgap.distillation.held_out import HISTORY_FILE
from posgap.distillation.methods import method_of
from posgap.foundation.files import read_json, read_jsonl, write_json
from posgap.kubeflow.form import STAGES
from posgap.measurement.report import content_policy
from posgap.measurement.sweeps import read_sweep
from posgap.storage.inputs import read_manifest
from posgap.tasks.positions import format_positions

# The outputs of `preflight`, with their types: whether there is anything to do (KFP's local runner knows a condition at
# the top by no other name), which groups of steps run, what is read and cached, and the settings of each stage.
PLAN = dict.fromkeys(("Output", "mitigated", "layered", "approval"), "bool") | {"trained": "list", "parts": "list"}
PLAN |= dict.fromkeys(("recipe", "train_cpu", "train_memory", "train_uri", "eval_uri", "champion"), "str")
PLAN |= dict.fromkeys(("eval_key", "train_key", "champion_key"), "str") | dict.fromkeys(STAGES, "dict")
ROUNDED = 3  # digits after the point, in metrics


def describe_artifact(artifact: Any, **metadata: Any) -> None:
    """Sets an artifact's metadata: the given ones, and the stage's name, seed, version and MLflow run."""
    manifest = read_manifest(Path(artifact.path))
    made_by = {
        "stage": manifest.get("stage"),
        "seed": manifest.get("seed"),
        "posgap": manifest.get("versions", {}).get("posgap"),
        "mlflow_run_id": manifest.get("mlflow_run_id"),
    }
    for name, value in (made_by | metadata).items():
        if value not in (None, ""):
            artifact.metadata[name] = value


def measure(metrics: Any, **figures: float) -> None:
    """Writes figures into a Metrics artifact: as metadata, and as a file, which KFP's cache requires."""
    rounded = {}
    for name, value in figures.items():
        rounded[name] = round(float(value), ROUNDED)
        metrics.log_metric(name, rounded[name])
    write_json(Path(metrics.path), rounded)


def show_sweep(out: Any, curve: Any, metrics: Any) -> None:
    """Shows a sweep: its curve as HTML, its figures as metrics."""
    folder = Path(out.path)
    sweep = read_sweep(folder)
    shutil.copyfile(folder / "sweep.html", curve.path)
    measure(
        metrics,
        mean=sweep.mean,
        gap=sweep.gap,
        gap_ci95_low=sweep.gap_ci95[0],
        gap_ci95_high=sweep.gap_ci95[1],
        worst=sweep.worst.accuracy,
        flatness_p=sweep.flatness.p,
        **(sweep.outcomes.metrics if sweep.outcomes else {}),
    )
    describe_artifact(out, label=sweep.label, task=sweep.task, n_docs=sweep.n_docs, n_examples=sweep.n_examples)


def show_champion(out: Any, curve: Any, metrics: Any) -> None:
    """Shows the sweep of a champion, or that there is none."""
    swept = read_json(Path(out.path) / "champion.json")
    if swept["version"]:
        show_sweep(out, curve, metrics)
    else:
        Path(curve.path).write_text("<!doctype html><meta charset='utf-8'><p>There is no champion.", encoding="utf-8")
        measure(metrics)
    describe_artifact(out, registered_name=swept["name"], version=swept["version"])


def show_page(out: Any, name: str, page: Any) -> None:
    """Shows the file `name` of the stage's folder as a page."""
    shutil.copyfile(Path(out.path) / name, page.path)
    describe_artifact(out)


def show_summary(out: Any, summary: Any, name: str) -> None:
    """Shows the file `name` of the stage's folder, in Markdown, as the step's summary."""
    show_page(out, name, summary)


def show_data_version(
    out: Any, uri: str, version: str, eval_uri: str, eval_key: str, train_key: str, champion_key: str, champion: str
) -> bool:
    """Hands on the data version that was picked, and returns whether there is anything to do.

    There is, if data, base model or recipe changed since the champion was made, or if that does not matter.
    """
    found = read_json(Path(out.path) / "version.json")
    keys = found["cache_keys"]
    texts = {uri: found["uri"], version: found["version"], eval_uri: found["eval_uri"], eval_key: keys["eval"]}
    texts |= {train_key: keys["train"], champion_key: keys["champion"], champion: found["champion"] or ""}
    for file, text in texts.items():
        Path(file).write_text(text)
    return not found["skip"]


def show_preflight(out: Any, checks: Any) -> tuple:
    """Shows the result of each check of `preflight`, the form's settings, and the settings of each stage; returns what
    `PLAN` names."""
    plan = read_json(Path(out.path) / "preflight.json")
    lines = ["# Ready to run", "", *(f"- **{name}**: {result}" for name, result in plan["found"].items())]
    for title, values in {"Settings": plan["given"], "What each stage is given": plan["settings"]}.items():
        lines += ["", f"## {title}", "", "```yaml"]
        lines += [*(f"{name}: {json.dumps(value)}" for name, value in values.items()), "```"]
    lines.append("")
    Path(checks.path).write_text("\n".join(lines), encoding="utf-8")
    describe_artifact(out)
    version = plan["version"]
    given = {stage: {} for stage in STAGES} | plan["settings"] | plan
    given |= {"Output": not version["skip"], "train_uri": version["uri"], "eval_uri": version["eval_uri"]}
    given |= {"champion": version["champion"] or ""} | {f"{of}_key": key for of, key in version["cache_keys"].items()}
    return tuple(given[name] for name in PLAN)


def show_examples(out: Any, page: Any, metrics: Any) -> None:
    """Shows the page of a validation, and the number of examples and of expectations they were checked by."""
    shutil.copyfile(Path(out.path) / "validation.html", page.path)
    report = read_json(Path(out.path) / "validation.json")
    measure(metrics, examples=report["examples"], expectations=report["evaluated"])
    describe_artifact(out, examples=report["examples"])


def show_responses(out: Any, metrics: Any) -> None:
    """Shows how many of the teacher's responses are right, and the placements of its gold documents."""
    summary = read_json(Path(out.path) / "teacher.json")
    measure(metrics, **{name: summary[name] for name in ("examples", "correct", "kept", "accuracy")})
    describe_artifact(out, placement=",".join(map(format_positions, summary["placements"])), kept=summary["kept"])


def verdict_beside(out: Any) -> str:
    """Returns the folder of the verdict that a promotion judged again, beside its output."""
    return f"{out.path}-verdict"


def show_promotion(out: Any) -> None:
    """Shows the registered version, its alias, and whether it was judged again against a new champion."""
    promotion = read_json(Path(out.path) / "promotion.json")
    shown = {"registered_name": promotion["name"], "version": promotion["version"], "alias": promotion["alias"]}
    describe_artifact(out, **shown, judged_again=Path(verdict_beside(out)).is_dir())


def show_model(out: Any, **metadata: Any) -> None:
    """Shows a model's format and origin."""
    config = read_manifest(Path(out.path)).get("config", {})
    kept = {name: config.get(name) for name in ("learning_rate", "epochs", "lora_rank")}
    made_by = {"base_model": config.get("model"), "method": method_of(out.path)}
    describe_artifact(out, framework="transformers", format="safetensors", **made_by, **kept, **metadata)


def show_training(out: Any, metrics: Any) -> None:
    """Shows a trained model, with the loss of its first and last step."""
    steps = list(read_jsonl(Path(out.path) / HISTORY_FILE))
    (_, first) = steps[0]
    (_, last) = steps[-1]
    show_model(out, steps=len(steps))
    measure(metrics, first_loss=first["loss"], last_loss=last["loss"], steps=len(steps))


def show_pictures(page: Any, caption: str, *pictures: Path) -> None:
    """Writes a self-contained page with pictures and their caption."""
    caption = html.escape(caption)
    text = f'<!doctype html><meta charset="utf-8"><title>{caption}</title>'
    text += f'<meta http-equiv="Content-Security-Policy" content="{content_policy()}">'
    text += f'<p style="max-width:48em;font:16px/1.5 system-ui,sans-serif">{caption}</p>'
    for picture in pictures:
        data = base64.b64encode(picture.read_bytes()).decode()
        text += f'<img alt="{caption}" style="max-width:100%" src="data:image/png;base64,{data}">'
    Path(page.path).write_text(text, encoding="utf-8")


def show_scaling(out: Any, picture: Any, metrics: Any) -> None:
    """Shows a search's fitness, and its factors over the layers."""
    folder = Path(out.path)
    scaling = read_json(folder / "scaling.json")
    show_pictures(picture, "RoPE factor per layer, and the search for them", folder / "scaling.png")
    measure(metrics, fitness=scaling["fitness"], unscaled_fitness=scaling["unscaled_fitness"])
    describe_artifact(
        out, curve=str(scaling["curve"]), factors=str(scaling["factors"]), n_examples=len(scaling["example_contents"])
    )


def show_mitigate(out: Any, page: Any, metrics: Any) -> None:
    """Shows the page of a comparison of mitigations, and the gain of the best that was measured."""
    folder = Path(out.path)
    result = read_json(folder / "mitigate.json")
    shutil.copyfile(folder / "mitigate.html", page.path)
    measured = [each["name"] for each in result["found"] if each["measured"]]
    measure(metrics, gap=result["base_gap"], mean=result["base_mean"])
    describe_artifact(out, measured=", ".join(measured), seconds=str(result["seconds"]))


def show_rollout(out: Any, picture: Any, names: tuple[str, ...]) -> None:
    """Shows the readings of a rollout's JSON files, and those of its pictures that exist, by name."""
    files = [Path(out.path, name) for name in names if Path(out.path, name).is_file()]
    summary = "; ".join(read_json(file)["summary"] for file in files if file.suffix == ".json")
    show_pictures(picture, summary, *(file for file in files if file.suffix == ".png"))
    describe_artifact(out, summary=summary)


def show_gate(out: Any, page: Any, rules: Any, metrics: Any) -> bool:
    """Shows the gate's page, and its rules as a table and as metrics, and returns whether the model passed."""
    from posgap.gating.decision_page import GATE_PAGE
    from posgap.gating.verdict import markdown, read_verdict

    verdict = read_verdict(Path(out.path))
    shutil.copyfile(Path(out.path) / GATE_PAGE, page.path)
    Path(rules.path).write_text(markdown(verdict), encoding="utf-8")
    measure(metrics, passed=verdict.passed, **{rule.name: rule.value for rule in verdict.rules})
    describe_artifact(out, passed=verdict.passed)
    return verdict.passed
