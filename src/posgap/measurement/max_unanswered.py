"""The parameter that bounds how many prompts may go without an answer."""

from typing import Annotated

from pydantic import Field

from posgap.foundation.fields import RARE
from posgap.foundation.registry import Parameters

NOTABLE = 10.0  # percent of the answers at a placement: enough to make or hide a gap as large as a gate admits


class MaxUnanswered(Parameters):
    max_unanswered: Annotated[float, RARE] = Field(
        2.0,
        ge=0,
        le=100,
        description="largest share of prompts at a placement, in percent, that may stay unanswered (refused, "
        "truncated, empty or failed); beyond it posgap gives no figures",
    )
