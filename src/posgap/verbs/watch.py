"""`posgap watch`: does the registered champion still keep its policy on data newer than its promotion?

If it does not, that ends the run, and starts the mitigation pipeline if it is to.
"""

import functools
import json
import logging
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from posgap.foundation.errors import LeftPolicy
from posgap.foundation.fields import parse_settings
from posgap.foundation.files import read_model, write_json
from posgap.foundation.heavy_types import ModelVersion
from posgap.foundation.locations import Location
from posgap.foundation.printing import RESULT
from posgap.gating.demands import Policy
from posgap.gating.policy import parsed_policy, registered_policy
from posgap.gating.verdict import Verdict, against, judge, log_verdict, markdown
from posgap.measurement.sweeps import Sweep, read_sweep
from posgap.options.watch import WatchConfig
from posgap.tracking import registry
from posgap.tracking.champions import utc
from posgap.tracking.runs import NOTE_TAG, Run, milliseconds
from posgap.tracking.server import call_mlflow
from posgap.verbs.champion import CHAMPION_FILE, SweptVersion
from posgap.verbs.frame import stage

log = logging.getLogger(__name__)
WATCH_FILE, READABLE_FILE = "watch.json", "watch.md"
KEEPS = {
    "admitted": "keeps its policy",
    "refused": "has left its policy",
    "not enough evidence": "may have left its policy: there is not enough evidence",
}


def watch(config: WatchConfig) -> Location:
    """Writes `watch.json` and `watch.md`: whether a champion, as swept by `champion`, still meets the policy of its
    name.

    If the name has no policy, the one that admitted the version counts. Rules without a reference apply, and the mean
    must not be certainly lower than at promotion by more than `mean_tolerance`. The version is tagged with the outcome.
    If the champion fails, raises `LeftPolicy`, keeps both files beside the output, and starts the mitigation pipeline
    on the KFP server if `mitigate` has its parameters.
    """
    try:
        return _judge_champion(config)
    except LeftPolicy as left:
        form = parse_settings(config.mitigate)
        if form:
            left.add_note(_start(form, config.namespace))
        raise


@functools.partial(stage, name="watch")
def _judge_champion(config: WatchConfig, out: Path, run: Run) -> None:
    swept = read_model(SweptVersion, config.champion, CHAMPION_FILE)
    name = swept.name
    number = swept.version
    if number is None:
        note = f"{name} has no champion"
        write_json(out / WATCH_FILE, {"name": name, "version": None, "outcome": "no champion", "note": note})
        (out / READABLE_FILE).write_text(f"# {note}\n", encoding="utf-8")
        log.log(RESULT, note)
        return
    sweep = read_sweep(config.champion)
    verdict = judge(config.champion, None, None, _policy_of(registry.get_version(name, number)))
    fallen = _fallen(sweep, swept, max(0.0, verdict.policy.mean_tolerance))  # a gain is owed once
    outcome = "refused" if fallen else verdict.outcome
    note = f"{name} version {number} {KEEPS[outcome]}: {fallen or _deciding_figures(verdict)}"
    result = {"name": name, "version": number, "outcome": outcome, "note": note}
    write_json(out / WATCH_FILE, result | {"verdict": verdict.model_dump(mode="json")})
    (out / READABLE_FILE).write_text(f"{markdown(verdict)}\n{note}.\n", encoding="utf-8")
    log_verdict(verdict, sweep, run)
    run.tags({NOTE_TAG: note, "posgap.version": number, "posgap.gate": outcome})
    text = f"{utc(milliseconds())} {note}"
    call_mlflow(lambda client: client.set_model_version_tag(name, number, registry.WATCHED, text))
    run.artifact(out)
    log.log(RESULT, note)
    if outcome == "refused":
        raise LeftPolicy(note)


def _policy_of(version: ModelVersion) -> Policy:
    """Returns the registered model's policy, else the one that admitted this version, without its `data`, since fresh
    data differ."""
    admitted_by = version.tags.get(registry.POLICY, "{}").encode()
    policy = registered_policy(version.name)
    policy = policy or parsed_policy(admitted_by, f"policy of {version.name} version {version.version}")
    return policy.model_copy(update={"data": ""})


def _fallen(sweep: Sweep, swept: SweptVersion, tolerance: float) -> str:
    """Describes how far the mean lies below the promoted version's; empty unless that is certainly more than the
    tolerance. The intervals come from two samples, so nothing is paired."""
    if swept.promoted_mean_ci95 is None:
        return ""
    (low, high) = sweep.mean_ci95
    (before, _) = swept.promoted_mean_ci95
    if high >= before - tolerance:
        return ""
    return f"mean {sweep.mean:.1f} ({low:.1f} to {high:.1f}), and at least {before:.1f} when it was promoted"


def _deciding_figures(verdict: Verdict) -> str:
    """Returns the deciding figures in a line: those of rules that were not passed, else all."""
    rulings = [ruling for ruling in verdict.rules if not ruling.passed] or verdict.rules
    return "; ".join([*map(against, rulings), *verdict.evidence_gaps])


def _start(form: Mapping[str, Any], namespace: str) -> str:
    """Starts the mitigation pipeline with these parameters, by `posgap pipeline submit`; returns the outcome, whatever
    it was: the champion comes first."""
    values = {name: value if isinstance(value, str) else json.dumps(value) for name, value in form.items()}
    params = [word for name, value in values.items() for word in ("--param", f"{name}={value}")]
    # Through the command line: the pipelines depend on their steps, and this is one of them.
    command = [sys.executable, "-m", "posgap", "pipeline", "submit", "--json", "--namespace", namespace, *params]
    # In a step KFP sets a variable with which its package can compile no pipeline.
    environment = {name: value for name, value in os.environ.items() if name != "_KFP_RUNTIME"}
    ended = subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    said = json.loads(ended.stdout) if ended.stdout else {"error": ended.stderr.strip().rpartition("\n")[2]}
    if ended.returncode:
        log.error("the mitigation pipeline was not started: %s", said["error"])
        return f"the mitigation pipeline was not started: {said['error']}"
    return "the mitigation pipeline was started"
