"""Options of `check`."""

from pydantic import Field

from posgap.foundation.fields import (
    ModelName,
    OptionalInputPath,
)
from posgap.gating.demands import MinimumEvidence
from posgap.gating.rules import CHECK_RULES
from posgap.generation.backends import BACKENDS
from posgap.options.generation import BackendConfig
from posgap.options.sweep import SWEPT_MODEL, SweepScope
from posgap.options.verb import Verb


class CheckConfig(
    *CHECK_RULES.bases(),  # type: ignore[misc]  # registered choices' parameters
    MinimumEvidence,
    SweepScope,
    *BACKENDS.bases(),  # type: ignore[misc]
    BackendConfig,
):
    """Sweeps a model or an endpoint and judges it, without a base to compare with: one command for any CI.

    Exit code 3: it breaks a rule; 7: there is not enough evidence.
    """

    named_by = ("model", "task", "examples")

    examples: OptionalInputPath = Field(  # type: ignore[assignment]  # the other stages do not make their own
        None, description="file of examples, .jsonl or .jsonl.gz, or folder from `validate`; empty: makes some"
    )
    model: ModelName = Field(description=SWEPT_MODEL)
    policy: OptionalInputPath = Field(
        None,
        description="file of the policy; only its rules that need no base count; empty: the options below",
    )
    n_examples: int = Field(300, ge=1, description="examples to make if no file is given")


VERB = Verb(CheckConfig, "--model Qwen/Qwen3-0.6B --task kv --max-gap 10 --out run/check")
