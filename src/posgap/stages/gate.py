"""gate: may this model enter the registry?"""

import logging
from pathlib import Path

from posgap.config import GateConfig
from posgap.files import write_json
from posgap.gating.policy import policy_of
from posgap.gating.replay import keep
from posgap.gating.verdict import GATE_FILE, judge, markdown
from posgap.measurement.sweeps import read_sweep
from posgap.stage import stage
from posgap.tracking.runs import Run

log = logging.getLogger(__name__)


@stage
def gate(config: GateConfig, out: Path, run: Run) -> None:
    """Writes `gate.json` (each rule with threshold, value and outcome, and the verdict), the same for people as
    `gate.md`, and copies of what it rests on, by which it can be judged again."""
    verdict = judge(config.candidate, config.base, config.champion, policy_of(config))
    write_json(out / GATE_FILE, verdict.model_dump(mode="json"))
    (out / "gate.md").write_text(markdown(verdict), encoding="utf-8")
    keep([("candidate", config.candidate), ("base", config.base), ("champion", config.champion)], out)
    swept = read_sweep(config.candidate)
    run.metrics({"gap": swept.gap, "mean": swept.mean, **{f"{rule.name}_value": rule.value for rule in verdict.rules}})
    run.tags({"posgap.gate": verdict.outcome, "posgap.label": swept.label})
    run.artifact(out)
    for rule in verdict.rules:
        log.info("%s %s (%.1f): %s", rule.outcome, rule.name, rule.value, rule.sentence)
    for complaint in verdict.lacking:
        log.info("too little to judge by: %s", complaint)
