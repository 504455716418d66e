"""The mitigations that users choose by name: posgap's own, and those of installed packages."""

from typing import Annotated, cast

from pydantic import AfterValidator

from posgap.foundation.choices import Choices
from posgap.mitigations.attention_buckets import ATTENTION_BUCKETS
from posgap.mitigations.calibration import CALIBRATION
from posgap.mitigations.channel_scaling import CHANNEL_SCALING
from posgap.mitigations.document_orders import ATTENTION_SORTING, FEWER, PERMUTATION, REORDERING, REVERSED
from posgap.mitigations.head_gates import HEAD_GATES
from posgap.mitigations.lpes import LPES
from posgap.mitigations.mitigation import Mitigation, PromptMitigation
from posgap.mitigations.ms_poe import MS_POE, MS_POE_STATIC
from posgap.mitigations.pine import PINE
from posgap.mitigations.rope_scaling import LINEAR, NTK, YARN
from posgap.mitigations.self_extend import SELF_EXTEND

MITIGATIONS: Choices[Mitigation] = Choices(
    "mitigation",
    "posgap.mitigations",
    LPES,
    MS_POE,
    MS_POE_STATIC,
    LINEAR,
    NTK,
    YARN,
    ATTENTION_BUCKETS,
    SELF_EXTEND,
    REVERSED,
    REORDERING,
    FEWER,
    ATTENTION_SORTING,
    PERMUTATION,
    CHANNEL_SCALING,
    HEAD_GATES,
    PINE,
    CALIBRATION,
)
PROMPT_MITIGATIONS = cast(  # all that a sweep can ask by
    "Choices[PromptMitigation]", MITIGATIONS.where(lambda mitigation: not mitigation.of_model)
)


PromptMitigationName = Annotated[str, PROMPT_MITIGATIONS, AfterValidator(PROMPT_MITIGATIONS.checked_if_any)]
