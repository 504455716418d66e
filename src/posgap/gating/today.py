"""Whether a verdict compares its candidate with the champion of today."""

from pathlib import Path

from posgap.foundation.errors import PosgapError
from posgap.gating.verdict import Verdict
from posgap.tracking import registry


class Outdated(PosgapError):
    """A verdict on another champion than that of today."""


def champion_of(verdict: Verdict, name: str, folder: Path, before: str = "") -> str:
    """The version of the registered model's champion, which a verdict's candidate was compared with, or is itself; ""
    where there is none. `Outdated` where it was compared with another, or with none.

    `folder` is the verdict's, for the error; `before` is the version that was champion a while ago, if that was asked.
    """
    champion, judged = registry.to_beat(name), verdict.evidence.get("champion")
    if champion is None:
        return ""
    # A version that posgap did not register has no digest; that some champion was judged, and that it is the same
    # while this goes on, is all that can be asked.
    version, held = str(champion.version), champion.tags.get(registry.DIGEST)
    if held == verdict.model_digest or (judged and held == judged.model_digest):
        return version
    if judged and held is None and before in ("", version):
        return version
    against = f"another champion, {judged.label}" if judged else "no champion"
    raise Outdated(
        f"{folder}: compares the model with {against}, and that of {name} is version {version}; gate again with "
        f"--name {name}, or have promote do so with --gate-again FOLDER"
    )
