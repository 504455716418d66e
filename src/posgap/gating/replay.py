"""Checks whether a verdict still holds. It is judged again, offline and in any place, from the sweeps' copies that the
gate kept beside it; and it must compare its candidate with today's champion."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from posgap.foundation.errors import Contradiction, Malformed, NotFound, PosgapError
from posgap.foundation.files import digest_path, read_json
from posgap.foundation.heavy_types import ModelVersion
from posgap.gating.copies import ROLES
from posgap.gating.demands import Policy
from posgap.gating.evidence import ANCHOR, DISTRACTORS, first_difference, judged_files, read_gate_inputs
from posgap.gating.guards import Sources
from posgap.gating.looks import is_counted
from posgap.gating.policy import registered_policy
from posgap.gating.rules import GateInputs
from posgap.gating.signature import signature_file
from posgap.gating.verdict import GATE_FILE, Verdict, judge, read_verdict, share_of_error
from posgap.measurement.sweeps import read_sweep
from posgap.tasks.examples import AnyExample
from posgap.tracking import registry
from posgap.tracking.version_record import anchor_of

log = logging.getLogger(__name__)
JUDGED_FILES = (GATE_FILE, signature_file(Path(GATE_FILE)).name)


def replay_verdict(folder: Path) -> Verdict:
    """Returns the verdict of a gate's folder, judged again with the same result.

    Raises `PosgapError` that says what differs: a file is not the judged one, a figure does not follow from the
    predictions, or the verdict does not follow.
    """
    if not folder.is_dir():
        raise NotFound("no folder; give the one that `gate` wrote", at=str(folder))
    recorded = read_verdict(folder)
    for role, record in recorded.evidence.items():
        if role not in ROLES:
            raise Malformed(f"evidence of {role!r}: there are {', '.join(ROLES)}", at=str(folder / GATE_FILE))
        for name in sorted({*judged_files(folder / role), *record.files}):
            file = folder / role / name
            if (digest_path(file) if file.is_file() else "") != record.files.get(name, ""):
                raise Contradiction("not the file that was judged; gate again", at=str(file))
    if not {"candidate", "base"} <= recorded.evidence.keys():
        raise Malformed("names no sweep of candidate or base; gate again", at=str(folder / GATE_FILE))
    again = judge_again(recorded.policy, recorded, folder)
    # The file's own fields: derived ones are not read here, but must be right for those who read them.
    wrong = first_difference(read_json(folder / GATE_FILE), again.model_dump(mode="json"))
    if wrong:
        raise Contradiction(f"does not follow from its sweeps: {wrong}; gate again", at=str(folder / GATE_FILE))
    return recorded


def read_kept_inputs(policy: Policy, verdict: Verdict, folder: Path) -> GateInputs:
    """The sweeps that lie beside a verdict, as a policy judges them."""
    kept = {role: folder / role for role in verdict.evidence}
    inputs, _ = read_gate_inputs(
        kept["candidate"], kept["base"], kept.get("champion"), policy.allow, anchor=kept.get(ANCHOR)
    )
    return replace(inputs, share=share_of_error(verdict.look, verdict.candidates))


def judge_again(
    policy: Policy,
    verdict: Verdict,
    folder: Path,
    examples: Mapping[str, AnyExample] | None = None,
    guarded_by: Sources | None = None,
) -> Verdict:
    """Returns a policy's verdict on the evidence beside a verdict; every response is scored again from `examples`, and
    those of guards from `guarded_by`."""
    kept = {role: folder / role for role in verdict.evidence}
    is_known = verdict.look > 1 or is_counted(read_sweep(folder / "candidate"))
    look = verdict.look if is_known else None
    again = judge(
        kept["candidate"],
        kept["base"],
        kept.get("champion"),
        policy,
        examples=examples,
        look=look,
        candidates=verdict.candidates,
        anchor=kept.get(ANCHOR),
        guarded_by=guarded_by,
    )
    # What the kept files cannot reproduce: the anchor's sweep, and the examples.
    left_out = {ANCHOR, DISTRACTORS} & {*verdict.asked_otherwise} & {*policy.allow}
    otherwise = sorted({*again.asked_otherwise, *left_out})
    told = {"name": verdict.name, "judged_at": verdict.judged_at, "asked_otherwise": otherwise}
    return again.model_copy(update=told)


def require_valid(verdict: Verdict, name: str, policies: Sequence[Policy], folder: Path) -> None:
    """Raises `PosgapError` if a verdict is for another registered name than `name`, if it has none though one of the
    `policies` wants it signed, or if it is older than one of them allows. `folder` is the verdict's, for the error."""
    if verdict.name != name and (verdict.name or any(policy.signed_by for policy in policies)):
        judged_for = f"judged for {verdict.name}" if verdict.name else "judged for no name"
        raise PosgapError(f"{judged_for}, and this is {name}; gate again with --name {name}", at=str(folder))
    ages = [policy.max_age_days for policy in policies if policy.max_age_days]
    if not ages:
        return
    most = min(ages)
    try:
        age = (datetime.now(UTC) - datetime.fromisoformat(verdict.judged_at)).total_seconds() / 86400
    except (ValueError, TypeError):
        raise Malformed(
            "does not say when it was judged, and the policy asks for that; gate again", at=str(folder)
        ) from None
    if not 0 <= age <= most:
        when = f"{age:.1f} days ago" if age >= 0 else "in the future"
        raise PosgapError(f"was judged {when}, and {most:g} days are allowed; gate again", at=str(folder))


class OutdatedVerdict(PosgapError):
    """Raised for a verdict that compared with another champion than today's."""


def require_current_champion(verdict: Verdict, name: str, folder: Path, before: str = "") -> str:
    """Returns the version of the champion of the registered model `name`; "" if it has none.

    Raises `OutdatedVerdict` unless the verdict's candidate is that champion, or was compared with it and, if the policy
    requires it, with the best champion so far. `folder` is the verdict's, for the error. `before` is an earlier call's
    result, if any: a champion without a digest is then not downloaded again.
    """
    champion = registry.to_beat(name)
    judged = verdict.evidence.get("champion")
    if champion is None:
        return ""
    version = str(champion.version)
    held = champion.tags.get(registry.DIGEST)
    if held == verdict.model_digest:
        return version
    if judged and held == judged.model_digest:
        _require_the_best(verdict, champion, folder)
        return version
    # A version that posgap did not register has no digest; compute it from MLflow's copy.
    if judged and held is None and (before == version or judged.model_digest in registry.stored_digests(champion)):
        return version
    against = f"another champion, {judged.label}" if judged else "no champion"
    if held is None:
        raise OutdatedVerdict(
            f"{folder}: compares the model with {against}, but the champion of {name} is version {version}, which was "
            f"registered without posgap; download that model (mlflow artifacts download -u models:/{name}/{version} -d "
            "DIR), sweep it, and gate again with that sweep as --champion"
        )
    raise OutdatedVerdict(
        f"{folder}: compares the model with {against}, but the champion of {name} is version {version}; gate again "
        f"with --name {name}, or have promote do so with --gate-again FOLDER"
    )


def _require_the_best(verdict: Verdict, champion: ModelVersion, folder: Path) -> None:
    """Raises `OutdatedVerdict` if a verdict does not compare its candidate with the best champion so far, as the
    policy of the registered name asks, or else its own."""
    best = anchor_of(champion)
    compared = verdict.evidence.get(ANCHOR)
    known = {verdict.model_digest, compared.model_digest if compared else ""}
    policy = registered_policy(champion.name) or verdict.policy
    if best and ANCHOR not in policy.allow and best.tags.get(registry.DIGEST) not in known:
        raise OutdatedVerdict(
            f"{folder}: does not compare the model with the best champion so far, {best.name} version {best.version}; "
            f"gate again with --name {best.name}, or have promote do so with --gate-again FOLDER"
        )
