"""verify: compares outputs with their manifests, and judges again."""

import logging
from pathlib import Path
from typing import Any

from posgap.foundation.errors import Findings, PosgapError
from posgap.foundation.printing import RESULT, join_lines, show
from posgap.foundation.printing import set_result as keep_result
from posgap.gating.copies import private_verdict
from posgap.gating.replay import JUDGED_FILES, replay_verdict
from posgap.gating.verdict import GATE_FILE
from posgap.options.verify import VerifyConfig
from posgap.storage.inputs import source
from posgap.storage.verification import Verification

log = logging.getLogger(__name__)


def verify(config: VerifyConfig) -> None:
    """Verifies the folders, and judges a gate's again. Prints a line for each fault; raises `Findings` if there is
    one."""
    verification = Verification()
    verdicts = dict[str, str]()
    for folder in config.folders:
        there = source(folder)
        verification.verify(there)
        try:
            if GATE_FILE in there.sizes():
                with private_verdict(Path(there.fetch()), JUDGED_FILES) as copy:
                    verdict = replay_verdict(copy)
                verdicts[str(folder)] = f"{verdict.outcome}, of {', '.join(verdict.evidence)}"
        except PosgapError as error:
            verification.faults.append(str(error))
    counted = f"{verification.count} files ({verification.bytes / 1e6:.1f} MB) of {len(verification.checked)} outputs"
    result: dict[str, Any] = {"outputs": sorted(verification.checked), "files": verification.count}
    result |= {"faults": verification.faults, "not_verified": verification.out_of_reach, "verdicts": verdicts}
    for place, reason in verification.out_of_reach.items():
        log.info("%s: not verified: %s", place, reason)
    if verification.faults:
        show(join_lines(verification.faults), result)
        raise Findings(f"{len(verification.faults)} faults in {counted}")
    keep_result(result)
    for place, outcome in verdicts.items():
        log.log(RESULT, "%s: judged again with the same verdict: %s", place, outcome)
    log.log(RESULT, "%s: everything matches its manifest", counted)
