"""The type of a config field that names a mitigation of prompts."""

from typing import Annotated

from pydantic import AfterValidator

from posgap.mitigations.registry import PROMPT_MITIGATIONS

PromptMitigationName = Annotated[str, PROMPT_MITIGATIONS, AfterValidator(PROMPT_MITIGATIONS.checked_if_any)]
