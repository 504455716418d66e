"""gate: a candidate is judged against the champion that the registry has, on the same examples."""

import functools
import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

from posgap.foundation.errors import BadOption
from posgap.foundation.files import write_json
from posgap.foundation.locations import Location
from posgap.foundation.printing import RESULT, colour_word
from posgap.gating.copies import copy_sweep, private_sweeps
from posgap.gating.decision_page import GATE_PAGE, decision_page, explored_roles
from posgap.gating.evidence import anchor_beside
from posgap.gating.guards import guard_sources
from posgap.gating.looks import attempt_number, record_attempt
from posgap.gating.policy import policy_line
from posgap.gating.signature import public_key, sign, signing_key
from posgap.gating.verdict import GATE_FILE, Verdict, judge, log_verdict, markdown, read_verdict, shared_error
from posgap.measurement.report import save_page
from posgap.measurement.rescoring import swept_examples
from posgap.measurement.sweeps import read_sweep
from posgap.options.gate import GateConfig
from posgap.storage.cache import fetch_location
from posgap.tracking import registry
from posgap.tracking.runs import Run
from posgap.verbs.champion import says_there_is_none, sweep_like
from posgap.verbs.demanded import policy_file, policy_of
from posgap.verbs.frame import stage
from posgap.verbs.more_looks import take_another_look

log = logging.getLogger(__name__)


def gate(config: GateConfig) -> None:
    """`posgap gate`: judges as `judge_and_write` does, and on more examples while the policy of the name gives them;
    raises `Rejected`, or asks for more examples, if the verdict does."""
    asked = config
    for look in count(2):
        verdict = read_verdict(fetch_location(judge_and_write(config)))
        more = take_another_look(config, verdict, look)
        if more is None:
            break
        config = more
    if config is not asked:
        log.log(RESULT, "the verdict is on %s: promote with --sweep %s", config.candidate, config.candidate)
    if not verdict.passed:
        raise verdict.error(str(config.candidate))


def judge_and_write(config: GateConfig) -> Location:
    """Judges the candidate and writes the verdict, whichever it is: against the registry's champion if `config` names a
    model and no sweep of it."""
    return _write_verdict(_fill_in(config))


def _fill_in(config: GateConfig) -> GateConfig:
    """Returns the config completed from the registry and the environment: the champion's sweep, the registered model's
    policy (looked up each time), and the signer."""
    key = signing_key()
    signer = public_key(key) if key else ""
    if config.signer not in ("", signer):
        raise BadOption(f"`signer` {config.signer}: POSGAP_SIGNING_KEY holds {signer or 'no key'}")
    decided = {"champion": _champion_sweep(config), "policy": policy_file(config), "signer": signer}
    return config.model_copy(update=decided)


def _champion_sweep(config: GateConfig) -> Location | None:
    """Returns the sweep that a config names, or the registry's champion's if it names only a registered model.

    Returns None, and says so, if there is no champion, or `champion` has recorded none: the candidate is then compared
    with the base.
    """
    if config.champion and says_there_is_none(config.champion):
        log.info("%s says there is no champion, so the candidate is judged against the base", config.champion)
        return None
    if config.champion or not config.name:
        return config.champion
    version = registry.to_beat(config.name)
    if version is None:
        log.info("%s has no champion: the candidate is judged against the base", config.name)
        return None
    log.info("the candidate is judged against the champion, %s version %s", config.name, version.version)
    return sweep_like(version, config.candidate, config.examples)


@functools.partial(stage, name="gate")
def _write_verdict(config: GateConfig, out: Path, run: Run) -> None:
    """Writes `gate.json` (the verdict, and each rule with threshold, value and outcome), `gate.md` and, with the
    curves, `gate.html` for people, and copies of the evidence, so that it can be judged again.

    If the environment holds a key, the verdict's signature is written beside it.
    """
    anchor = anchor_beside(config.champion)
    paths = {"candidate": config.candidate, "base": config.base, "champion": config.champion, "anchor": anchor}
    with private_sweeps(paths) as copies:
        _judge_copies(config, paths, copies, out, run)


def _judge_copies(
    config: GateConfig, paths: Mapping[str, Path | None], copies: Mapping[str, Path], out: Path, run: Run
) -> None:
    swept = read_sweep(copies["candidate"])
    swept.require_model(config.candidate)
    if config.name:
        swept.require_model_alone(
            config.candidate, f"{config.name} would be registered as the model alone: sweep without one, and gate that"
        )
    examples = swept_examples(copies["candidate"], config.examples, config.candidate)
    policy = policy_of(config)
    guarded_by = guard_sources(copies["candidate"], policy, config.examples, config.candidate)
    verdict = judge(
        copies["candidate"],
        copies["base"],
        copies.get("champion"),
        policy,
        examples=examples,
        look=attempt_number(swept),
        candidates=config.candidates,
        anchor=copies.get("anchor"),
        guarded_by=guarded_by,
    )
    record_attempt(verdict, swept)
    judged_at = datetime.now(UTC).isoformat(timespec="seconds")
    verdict = verdict.model_copy(update={"name": config.name, "judged_at": judged_at})
    write_json(out / GATE_FILE, verdict.model_dump(mode="json"))
    key = signing_key()
    if key:
        sign(out / GATE_FILE, key)
    (out / "gate.md").write_text(markdown(verdict), encoding="utf-8")
    for role in verdict.evidence:
        copy_sweep(copies[role], out / role)
    figures = {role: read_sweep(copies[role]) for role in verdict.evidence}
    explored = explored_roles({role: paths[role] for role in verdict.evidence})
    save_page(decision_page(verdict, figures, explored), out / GATE_PAGE)
    log_verdict(verdict, swept, run)
    run.artifact(out)
    if config.policy:
        log.info("judged by policy %s", policy_line(policy))
    _say_rulings(verdict)


def _say_rulings(verdict: Verdict) -> None:
    for rule in verdict.rules:
        outcome = colour_word(rule.outcome, sys.stderr)
        log.log(RESULT, "%s %s %s: %s", outcome, rule.name, rule.found, rule.sentence)
    for guard in verdict.guards:
        if not guard.binds:
            log.log(RESULT, "shown, and not asked for: guard %s", guard.text)
    log.info("the verdict was %s", verdict.measured)
    shared = shared_error(verdict)
    if shared:
        log.info("%s", shared)
    if verdict.wanting:
        log.log(RESULT, "%s", verdict.wanting)
