"""Options of `sweep`."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, ValidationError, model_validator

from posgap.foundation.errors import first_fault
from posgap.foundation.fields import (
    MODEL,
    RARE,
    InputPaths,
    ModelName,
    OptionalInputPath,
    Values,
    WorkPath,
    is_function,
)
from posgap.foundation.locations import Location
from posgap.foundation.registry import Parameters
from posgap.gating.demands import GUARDS, Guards
from posgap.generation.backends import BACKENDS, OPENAI
from posgap.measurement.max_unanswered import MaxUnanswered
from posgap.measurement.settings import SweepSettings
from posgap.mitigations.registry import PROMPT_MITIGATIONS, PromptMitigationName
from posgap.options.generation import BackendConfig
from posgap.options.verb import Kind, Verb
from posgap.tasks.fields import BaselineNames, Depths, Lengths, Placements, Shard
from posgap.tasks.task import BASELINES

SWEPT_MODEL = f"{MODEL}; of an endpoint its address, with #NAME if it serves several, or the name with --base-url"


class SweepScope(Parameters):
    """Which part of a sweep is done, and under what name."""

    positions: Placements = Field(
        [], description="placements like 1,5,10, or 1+2,19+20 for two documents; empty: all, or pairs of all categories"
    )
    limit: int = Field(0, ge=0, description="use only the first `limit` examples; 0: all")
    label: str = Field("", description="name in plots and tables; empty: the method that made the model, or its name")


class Mitigating(Parameters):
    """Returns the mitigation of prompts that a model is asked with."""

    mitigation: PromptMitigationName = Field(
        "",
        description="mitigation of prompts for every example; a position is where the gold document "
        f"stands before the mitigation; {PROMPT_MITIGATIONS.help_text()}; empty: none",
    )
    mitigation_settings: Annotated[Values, RARE] = Field(
        {}, description='with `mitigation`, its settings as JSON, like {"orders": 5}; empty: its own'
    )


class SweepConfig(
    Mitigating,
    SweepScope,
    MaxUnanswered,
    *BACKENDS.bases(),  # type: ignore[misc]
    BackendConfig,
):
    """Measures accuracy with the gold documents at every position, and the gap between the best and the worst.

    `posgap plan sweep` says how many examples it takes.
    """

    examples_for: ClassVar[str] = "evaluation"

    model: ModelName = Field(description=SWEPT_MODEL)
    samples: Annotated[int, RARE] = Field(
        1, ge=1, le=1000, description="responses to each prompt; their mean score counts"
    )
    temperature: Annotated[float, RARE] = Field(0.0, ge=0, description="sampling temperature; 0: greedy")
    lengths: Lengths = Field(
        [],
        description="lengths of prompt plus longest answer, in tokens like 1k,4k,32k or in shares of the context "
        "like 25%,50%; prompts are filled with other documents up to it; several lengths make a map; "
        "empty: n_docs documents",
    )
    depths: Depths = Field(
        "5",
        description="with lengths, depths of the gold document: a number of depths, spread evenly, or percents like "
        "0,25,50",
    )
    most_gap: Annotated[float, RARE] = Field(
        10.0,
        ge=0,
        le=100,
        description="with lengths, largest gap in points at which a length still counts as effective",
    )
    shard: Shard = Field("", description="part of the placements to sweep: 2/4 is the second of four; empty: all")
    baselines: BaselineNames = Field(
        [],
        description="baselines, like closed-book,oracle: other ways to ask every example once more; "
        f"{BASELINES.help_text()}; empty: as-retrieved for a retrieval log, else none",
    )
    guards: Guards = Field({}, description=f"{GUARDS}; they are measured beside the sweep, for `gate`")
    estimate: bool = Field(False, description="only print the number of prompts and tokens")

    @model_validator(mode="after")
    def _goes_together(self) -> Self:
        if self.samples > 1 and not self.temperature:
            raise ValueError("several samples need a `temperature`: greedy responses are all the same")
        if len(set(self.baselines)) < len(self.baselines):
            raise ValueError("name each of the `baselines` once")
        if self.lengths and self.positions:
            raise ValueError("`positions` are of n_docs documents: with `lengths` give `depths`")
        if len(self.lengths) > 1 and self.shard:
            raise ValueError("`shard`: cannot split a sweep of several `lengths`; give each machine one length")
        if self.lengths and self.mitigation:
            raise ValueError(
                "`mitigation`: reorders documents, which moves the gold document from its depth; give `n_docs` "
                "in place of `lengths`"
            )
        if self.guards and (self.lengths or self.mitigation):
            raise ValueError("`guards`: cannot be used with `lengths` or a `mitigation`")
        if not BACKENDS[self.backend].local and any(guard.text for guard in self.guards.values()):
            raise ValueError("`guards`: plain text needs a local model, for its log-probabilities")
        if self.lengths and self.baselines:
            raise ValueError("`baselines` are of n_docs documents: leave them out with `lengths`")
        return self

    @model_validator(mode="after")
    def _can_be_mitigated(self) -> Self:
        if not self.mitigation:
            if self.mitigation_settings:
                raise ValueError("`mitigation_settings`: needs a `mitigation`")
            return self
        mitigation = PROMPT_MITIGATIONS[self.mitigation]
        try:
            mitigation.settings(**self.mitigation_settings)
        except ValidationError as error:
            raise ValueError(f"`mitigation_settings` of {self.mitigation}: {first_fault(error)}") from None
        return self

    def parameter_values(self) -> dict[str, Any]:
        """Returns the plain parameters; those of a mitigation, and guards, only if there are any, so a sweep without
        them equals one from before they existed."""
        known = super().parameter_values()
        without = {*([] if self.mitigation else Mitigating.model_fields), *([] if self.guards else ["guards"])}
        return {name: value for name, value in known.items() if name not in without}

    def further_inputs(self) -> dict[str, str]:
        return {f"guards.{name}": guard.place for name, guard in self.guards.items() if guard.place}

    def sweep_settings(self) -> SweepSettings:
        """Returns the settings of the sweep."""
        own = {
            each.name: getattr(self, each.name)
            for each in fields(SweepSettings)
            if each.name in type(self).model_fields
        }
        recorded = super().parameter_values()
        del recorded["guards"]  # none of its figures depends on these
        return SweepSettings(access=self.access(), response_key=self.response_key(), recorded=recorded, **own)

    @classmethod
    def cache_key_fields(cls) -> list[str]:
        """Returns the names of the parameters that decide the figures; the limit on unanswered prompts only decides
        whether there are any."""
        return [name for name in super().cache_key_fields() if name != "max_unanswered"]


class SweepVerbConfig(SweepConfig):
    """Measures accuracy with the gold documents at every position, and the gap between the best and the worst.

    With a model and nothing else it takes a first look: made examples at five positions, in about two minutes.
    `posgap plan sweep` says how many examples figures take that one can rely on.
    """

    named_by = ("model", "task", "examples")

    examples: OptionalInputPath = Field(  # type: ignore[assignment]  # the stage does not make its own
        None,
        description="file of examples, .jsonl or .jsonl.gz, or folder from `validate`; empty: as many made ones as two "
        "minutes allow",
    )
    requests: Annotated[WorkPath, RARE] = Field(
        None, description="folder for the requests of a batch; the command then asks nothing"
    )
    batch_format: Annotated[Literal["openai", "anthropic", "jsonl", "lm-eval"], RARE] = Field(
        "openai",
        description="format of `requests`: OpenAI's or Anthropic's batches, plain lines, or a task's folder of "
        "lm-evaluation-harness",
    )
    answers: Annotated[InputPaths, RARE] = Field(
        [], description="files of answers to such requests, which are read in place of asking"
    )

    @model_validator(mode="before")
    @classmethod
    def _of_a_batch(cls, values: Any) -> Any:
        """Requests go to an endpoint; posgap need not know its address."""
        if not isinstance(values, Mapping) or is_function(values.get("model")):
            return values
        if values.get("requests") and values.get("answers"):
            raise ValueError("`requests` and `answers` are separate steps; give only one")
        if values.get("requests") or values.get("answers"):
            return {**values, "backend": values.get("backend") or OPENAI.name}
        return values

    @model_validator(mode="after")
    def _asks_by_requests(self) -> Self:
        backend = BACKENDS[self.backend]
        if (self.requests or self.answers) and (backend.local or not backend.is_model):
            raise ValueError(f"`requests` and `answers`: are only for an endpoint, not for backend {backend.name}")
        if (self.requests or self.answers) and self.guards:
            raise ValueError("`guards`: cannot be used with `requests` and `answers`")
        return self

    def with_examples(self, file: Location, **chosen: object) -> SweepConfig:
        """The options of the stage, on the examples of a file."""
        given = {name: getattr(self, name) for name in self.model_fields_set if name in SweepConfig.model_fields}
        return SweepConfig(**given | chosen | {"examples": file})


VERB = Verb(
    SweepVerbConfig,
    "--task kv --model Qwen/Qwen3-0.6B --examples kv.jsonl.gz --out run/base",
    results=("sweep.json", "lengths.json"),
    kind=Kind.STAGE_WITH_CHECKS,
    stage_config=SweepConfig,
)
