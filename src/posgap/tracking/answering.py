"""Registered models must answer as they were swept: a version is tried before it serves, and MLflow then asks it in the
way in which its sweep did."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import ConfigDict, Field

from posgap.foundation.errors import Contradiction, NotAlike, PosgapError, shorten
from posgap.foundation.files import Record, parse_as, read_object
from posgap.generation.asking import ResponseLimits, Wording
from posgap.generation.backends import BACKENDS, TRANSFORMERS
from posgap.generation.generator import Completion, Sampling, complete
from posgap.generation.setup import builder_of
from posgap.measurement.filling import at_lengths
from posgap.measurement.predictions import Prediction
from posgap.measurement.sweeps import PromptSettings, Sweep
from posgap.mitigations.in_force import load_model
from posgap.models.memory import available_bytes, needed_bytes
from posgap.models.precision import warn_of_device
from posgap.tasks.examples import AnyExample
from posgap.tasks.fields import Depths, Lengths, OptionalMetricName, QuestionPlace, TaskName
from posgap.tasks.framing import PLAIN, Framing
from posgap.tasks.placements import Placement
from posgap.tasks.prompts import Prompt, PromptBuilder
from posgap.tasks.task import PromptOrder

if TYPE_CHECKING:
    import pandas as pd

ASKED = "data/asked.json"
MAX_NEW_TOKENS = 64  # where nothing says how the model was asked
_FRAMED = ("system", "template", "template_args")
# What settings decide of prompts, however the model is loaded.
_OF_PROMPTS = ("prompt", "template", "question", "shuffle", "max_new_tokens", "max_thinking_tokens", "stop", "system")
_SERVED_BY = (*_FRAMED, "stop", "dtype", "max_new_tokens", "max_thinking_tokens")


# Settings that have no part in a prompt at a placement, beside those of backends.
_OTHERS = {"backend", "batch_tokens", "positions", "shard", "baselines", "limit", "label", "samples", "max_unanswered"}
_OTHERS |= {"mitigation", "mitigation_settings", "most_gap", "guards"}


class _AskedSettings(Record):
    """The settings of a sweep that make its prompts again."""

    model_config = ConfigDict(extra="forbid")

    task: TaskName = "kv"
    n_docs: int = Field(20, ge=1)
    metric: OptionalMetricName = ""
    question: QuestionPlace = "after"
    shuffle: int = Field(0, ge=0)
    system: str = ""
    template: str = ""
    template_args: dict[str, Any] = Field({})
    max_new_tokens: int = Field(0, ge=0)
    max_thinking_tokens: int = Field(0, ge=0)
    stop: list[str] = Field([])
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    seed: int = Field(0, ge=0)
    temperature: float = Field(0.0, ge=0)
    lengths: Lengths = Field([])
    depths: Depths = "5"

    @classmethod
    def of(cls, sweep: Sweep) -> Self:
        """Reads those of a sweep; raises `PosgapError` for settings that this posgap does not know."""
        others = _OTHERS.union(*(backend.parameters.model_fields for backend in BACKENDS))
        asked = {name: value for name, value in sweep.settings.items() if name not in others}
        return parse_as(cls, asked, "settings")

    def builder(self, model: Path) -> PromptBuilder:
        """Returns what makes the prompts of `n_docs` documents."""
        framing = Framing(self.system, self.template, self.template_args)
        wording = Wording(self.task, PromptOrder(self.question, self.shuffle), framing, self.metric)
        stop = ResponseLimits.parse_stop(self.stop)
        return builder_of(str(model), wording, ResponseLimits(self.max_new_tokens, self.max_thinking_tokens, stop))


def why_not_tried(sweep: Sweep, model: Path) -> str:
    """Why the model in this folder cannot answer the prompts of its sweep again; empty if it can."""
    try:
        if not BACKENDS[sweep.settings.get("backend", TRANSFORMERS.name)].local:
            return "an endpoint answered"
        asked = _AskedSettings.of(sweep)
        if asked.temperature:
            return "its responses were drawn, and are others each time"
        needed = needed_bytes(model, asked.dtype)
    except PosgapError:
        return "its sweep has settings that this posgap does not know"
    available = available_bytes()
    if needed > available:
        return f"it needs {needed / 2**30:.1f} GiB of memory, and {available / 2**30:.1f} GiB are free"
    return ""


class SweptAnswers:
    """Has the model in a folder answer prompts of its sweep again; `examples` are the sweep's by their content.

    The `pyfunc` of the version answers, without its thoughts: no loader of MLflow's, nor `posgap.load_model`, loads the
    model otherwise than it does. Raises `PosgapError` if the sweep's settings make other prompts than it says.
    """

    def __init__(self, sweep: Sweep, model: Path, examples: Mapping[str, AnyExample]):
        asked = _AskedSettings.of(sweep)
        self.sweep = sweep
        self.examples = examples
        builder = asked.builder(model)
        _require_asked(sweep, PromptSettings.from_builder(builder))
        pool = list(examples.values())
        (self.builder,) = at_lengths(asked.lengths, asked.depths, asked.seed, builder, pool)
        self.n_slots = len(self.builder.fill.placements) if self.builder.fill else asked.n_docs
        self.answering = Answering(str(model), as_swept(sweep))

    def answer(self, rows: Sequence[Prediction]) -> list[Completion]:
        """What the model answers to the prompts of these rows."""
        texts = []
        for row in rows:
            placement = Placement(tuple(row["placement"]), self.n_slots)
            texts.append(self.builder.text(self.examples[row["content"]], placement))
        return self.answering.complete_texts(texts)


def _require_asked(sweep: Sweep, prompts: PromptSettings) -> None:
    """Raises `PosgapError` if `asked` says otherwise than the prompts that the settings of a sweep make."""
    for name in _OF_PROMPTS:
        said = getattr(sweep.asked, name)
        made = getattr(prompts, name)
        if said != made:
            raise Contradiction(
                f"its sweep says it asked with the {name} {shorten(repr(said))}, but its settings make "
                f"{shorten(repr(made))}; sweep again"
            )


def require_kept_alike(model: Path, sweep: Sweep) -> None:
    """`PosgapError` if the version in whose folder the model lies is served otherwise than a sweep asked, since another
    sweep of the same model came with it when it was registered."""
    kept = _registered_settings(model)
    asked = json.loads(json.dumps(as_swept(sweep)))
    others = [name for name in _SERVED_BY if name in kept and kept[name] != asked[name]]
    if others:
        raise NotAlike(
            f"MLflow serves it with the {others[0]} {kept[others[0]]!r} of the sweep it was registered by, and this "
            f"sweep asked with {asked[others[0]]!r}; sweep it as then, or promote it to another name"
        )


def as_swept(sweep: Sweep) -> dict[str, Any]:
    """Returns how a sweep asked, but for the wording of its task; a registered model keeps it for `Answering`."""
    asked = sweep.asked
    return {
        "system": asked.system,
        "template": sweep.settings.get("template", ""),
        "template_args": asked.template_args,
        "max_new_tokens": asked.max_new_tokens,
        "max_thinking_tokens": asked.max_thinking_tokens,
        "stop": asked.stop,
        "dtype": asked.dtype,
        "device": asked.device,
    }


class Answering:
    """A model that answers what it is asked, for MLflow's `pyfunc` and scoring server.

    `folder` is the model's, and `asked` what `as_swept` says of its sweep; {} where nothing is known.
    """

    def __init__(self, folder: str, asked: Mapping[str, Any]):
        # Looking at a registry must not import torch.
        from posgap.generation.transformers import TransformersGenerator

        self.raw = not asked
        framing = PLAIN if self.raw else Framing(*(asked[name] for name in _FRAMED))
        longest = asked.get("max_new_tokens", MAX_NEW_TOKENS)
        # Questions come with their wording, so any task will do.
        limits = ResponseLimits(longest, asked.get("max_thinking_tokens", 0), tuple(asked.get("stop", ())))
        self.builder = builder_of(folder, Wording("qa", framing=framing), limits)
        warn_of_device("the model", asked.get("device", ""))
        self.model = load_model(folder, asked.get("dtype") or "auto")
        self.generator = TransformersGenerator(self.model, self.builder.tokenizer, batch_tokens=0)

    def predict(self, model_input: "pd.DataFrame", params: Mapping[str, Any] | None = None) -> list[str]:
        """The model's answers, greedily decoded, in at most `max_new_tokens` tokens each, and without its thoughts.

        `model_input` has what is asked in its one column. The model is asked as in its sweep: with the same chat
        template, system message and stop strings. With `raw` each text is a prompt by itself, with nothing around it,
        and the answer is all that the model writes.
        """
        params = params or {}
        texts = [str(text) for text in model_input.iloc[:, 0]]
        longest = int(params.get("max_new_tokens", self.builder.max_new_tokens))
        if not params.get("raw", self.raw):
            return [answer.text for answer in self.complete_texts(texts, longest)]
        tokenizer = self.builder.tokenizer
        prompts = [Prompt(text, tokenizer(text)["input_ids"]) for text in texts]
        answers = complete(self.generator, prompts, Sampling(longest))
        return [str(tokenizer.decode(answer.token_ids, skip_special_tokens=True)) for answer in answers]

    def complete_texts(self, texts: Sequence[str], max_new_tokens: int = 0) -> list[Completion]:
        """The answers to these texts, as `predict` gives them; 0 means the sweep's own limit."""
        sampling = Sampling.for_builder(self.builder)
        sampling = replace(sampling, max_new_tokens=max_new_tokens or sampling.max_new_tokens)
        prompts = [Prompt(text, self.builder.token_ids(text)) for text in texts]
        return list(complete(self.generator, prompts, sampling))


def _load_pyfunc(path: str) -> Any:
    """Loads the model at `path`, the folder `data/model` of a logged one. MLflow calls this."""
    return Answering(path, _registered_settings(Path(path)))


def _registered_settings(model: Path) -> dict[str, Any]:
    """Returns the sweep's settings with which this model's folder was registered; {} if unknown."""
    asked = model.parent / Path(ASKED).name
    return read_object(asked) if asked.is_file() else {}
