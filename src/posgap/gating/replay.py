"""A verdict judged again, offline and wherever it lies, from the copies of the sweeps that the gate kept beside it."""

import shutil
from collections.abc import Iterable
from pathlib import Path

from posgap.foundation.errors import PosgapError
from posgap.foundation.files import digest, read_json
from posgap.gating.demands import Policy
from posgap.gating.evidence import FILES, first_difference, folder_of
from posgap.gating.verdict import GATE_FILE, Verdict, judge, read_verdict
from posgap.storage import verification
from posgap.storage.config import VerifyConfig
from posgap.storage.inputs import Source

ROLES = ("candidate", "base", "champion")


def keep(sweeps: Iterable[tuple[str, Path | None]], out: Path) -> None:
    """Copies of each sweep what a verdict rests on into `out`, under its role."""
    for role, path in sweeps:
        if path is None:
            continue
        (out / role).mkdir()
        for name in FILES:
            if (folder_of(path) / name).is_file():
                shutil.copyfile(folder_of(path) / name, out / role / name)


def replayed(folder: Path) -> Verdict:
    """The verdict of a gate's folder, judged again and found the same.

    Raises `PosgapError` that says what differs: a file that is not the one that was judged, a figure that its
    predictions do not give, or a verdict that does not follow.
    """
    if not folder.is_dir():
        raise PosgapError(f"{folder}: no folder; give the one that `gate` wrote")
    recorded = read_verdict(folder)
    for role, record in recorded.evidence.items():
        if role not in ROLES:
            raise PosgapError(f"{folder / GATE_FILE}: evidence of {role!r}: there are {', '.join(ROLES)}")
        for name in FILES:
            file = folder / role / name
            if (digest(file) if file.is_file() else "") != record.files.get(name, ""):
                raise PosgapError(f"{file}: not the file that was judged; gate again")
    if not {"candidate", "base"} <= recorded.evidence.keys():
        raise PosgapError(f"{folder / GATE_FILE}: names no sweep of candidate or base; gate again")
    again = judged_by(recorded.policy, recorded, folder)
    # The file as it is: what follows from other fields is not read, and must be right for those who do read it.
    if wrong := first_difference(read_json(folder / GATE_FILE), again.model_dump(mode="json")):
        raise PosgapError(f"{folder / GATE_FILE}: does not follow from its sweeps: {wrong}; gate again")
    return recorded


def judged_by(policy: Policy, verdict: Verdict, folder: Path) -> Verdict:
    """What a policy says of the evidence that lies beside a verdict."""
    champion = folder / "champion" if "champion" in verdict.evidence else None
    return judge(folder / "candidate", folder / "base", champion, policy)


def verify(config: VerifyConfig) -> None:
    """Verifies folders as `storage.verification` does, and judges again where a folder is of a gate."""
    verification.verify(config, _replayed_if_judged)


def _replayed_if_judged(folder: Source) -> str:
    """The outcome of a gate's folder, judged again; empty for another folder. Raises as `replayed` does."""
    if GATE_FILE not in folder.sizes():
        return ""
    verdict = replayed(Path(folder.fetch()))
    return f"{verdict.outcome}, of {', '.join(verdict.evidence)}"
