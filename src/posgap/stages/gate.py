"""gate: may this model enter the registry?"""

import logging
import sys
from datetime import UTC, datetime
from pathlib import Path

from posgap.foundation.errors import PosgapError
from posgap.foundation.files import write_json
from posgap.foundation.locations import Location
from posgap.foundation.printing import RESULT, colour_word
from posgap.gating.config import GateConfig
from posgap.gating.decision_page import GATE_PAGE, explored_roles, write_decision
from posgap.gating.evidence import anchor_beside
from posgap.gating.looks import attempt_number, record_attempt
from posgap.gating.policy import policy_file, policy_line, policy_of
from posgap.gating.replay import copy_sweeps
from posgap.gating.signature import public_key, sign, signing_key
from posgap.gating.verdict import GATE_FILE, judge, log_verdict, markdown, shared_error
from posgap.measurement.rescoring import swept_examples
from posgap.measurement.sweeps import read_sweep
from posgap.stages.frame import stage
from posgap.tracking.runs import Run

log = logging.getLogger(__name__)


def gate(config: GateConfig) -> Location:
    """Writes `gate.json` (each rule with threshold, value and outcome, and the verdict), the same for people as
    `gate.md` and, with the curves, `gate.html`, and copies of what it rests on, by which it can be judged again.

    The policy of the registered model that `config` names is asked for each time. Where the environment holds a key
    the verdict's signature lies beside it.
    """
    key = signing_key()
    signer = public_key(key) if key else ""
    if config.signer not in ("", signer):
        raise PosgapError(f"--signer {config.signer}: POSGAP_SIGNING_KEY holds {signer or 'no key'}")
    return _gate(config.model_copy(update={"policy": policy_file(config), "signer": signer}))


@stage
def _gate(config: GateConfig, out: Path, run: Run) -> None:
    swept = read_sweep(config.candidate)
    if config.name:
        swept.require_model_alone(
            config.candidate, f"{config.name} would be registered as the model alone: sweep without one, and gate that"
        )
    examples = swept_examples(config.candidate, config.examples)
    anchor, policy = anchor_beside(config.champion), policy_of(config)
    asked = config.candidate, config.base, config.champion
    verdict = judge(*asked, policy, examples, attempt_number(swept), config.candidates, anchor)
    record_attempt(verdict, swept)
    judged_at = datetime.now(UTC).isoformat(timespec="seconds")
    verdict = verdict.model_copy(update={"name": config.name, "judged_at": judged_at})
    write_json(out / GATE_FILE, verdict.model_dump(mode="json"))
    if key := signing_key():
        sign(out / GATE_FILE, key)
    (out / "gate.md").write_text(markdown(verdict), encoding="utf-8")
    paths = {"candidate": config.candidate, "base": config.base, "champion": config.champion, "anchor": anchor}
    judged = {role: path for role, path in paths.items() if role in verdict.evidence}
    copy_sweeps(judged.items(), out)
    sweeps = {role: read_sweep(path) for role, path in judged.items() if path}
    write_decision(verdict, sweeps, out / GATE_PAGE, explored_roles(judged))
    log_verdict(verdict, sweeps["candidate"], run)
    run.artifact(out)
    if config.policy:
        log.info("judged by policy %s", policy_line(verdict.policy))
    for rule in verdict.rules:
        log.log(RESULT, "%s %s (%.1f): %s", colour_word(rule.outcome, sys.stderr), rule.name, rule.value, rule.sentence)
    if sentence := shared_error(verdict):
        log.info("%s", sentence)
    if verdict.wanting:
        log.log(RESULT, "%s", verdict.wanting)
