"""Lists the mitigations that users choose by name: posgap's own, and those of installed packages."""

from typing import Annotated, cast

from pydantic import AfterValidator

from posgap.foundation.registry import Registry
from posgap.mitigations.document_orders import FEWER, PERMUTATION, QUOTED, REORDERING, REPEATED, REVERSED
from posgap.mitigations.lpes import LPES
from posgap.mitigations.mitigation import Mitigation, PromptMitigation
from posgap.mitigations.ms_poe import MS_POE
from posgap.mitigations.rope_scaling import LINEAR, NTK, YARN

MITIGATIONS: Registry[Mitigation] = Registry(
    "mitigation",
    "posgap.mitigations",
    MS_POE,
    LINEAR,
    NTK,
    YARN,
    REVERSED,
    REORDERING,
    FEWER,
    PERMUTATION,
    REPEATED,
    QUOTED,
    LPES,  # last: in this order `mitigate` tries them, and a search takes what time is left
)
PROMPT_MITIGATIONS = cast(  # all that a sweep can ask by
    "Registry[PromptMitigation]", MITIGATIONS.where(lambda mitigation: not mitigation.of_model)
)


PromptMitigationName = Annotated[str, PROMPT_MITIGATIONS, AfterValidator(PROMPT_MITIGATIONS.require_name_if_any)]
