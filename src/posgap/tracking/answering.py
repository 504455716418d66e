"""Registered models must answer as they were swept: a version is tried before it serves, and MLflow then asks it in the
way in which its sweep did."""

import json
import logging
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from posgap.foundation.errors import PosgapError, shorten
from posgap.foundation.files import read_object
from posgap.generation.backends import BACKENDS, TRANSFORMERS
from posgap.generation.generator import Sampling, complete
from posgap.generation.setup import builder_of, prompt_builder
from posgap.measurement.config import SweepConfig
from posgap.measurement.filling import as_filled
from posgap.measurement.predictions import Prediction, read_predictions, swept_rows
from posgap.measurement.rescoring import metric_scorer
from posgap.measurement.sweeps import Sweep, read_sweep
from posgap.mitigations.in_force import load_model
from posgap.models.memory import available_bytes, needed_bytes
from posgap.models.precision import warn_of_device
from posgap.tasks.examples import AnyExample
from posgap.tasks.framing import PLAIN, Framing
from posgap.tasks.placements import Placement
from posgap.tasks.prompts import Prompt

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger(__name__)
ASKED = "data/asked.json"
MAX_WORSE = 1 / 8  # of the responses that are tried, how many may have a lower score than was recorded
MAX_NEW_TOKENS = 64  # where nothing says how the model was asked
_FRAMED = ("system", "template", "template_args")
_SERVED_BY = (*_FRAMED, "stop", "dtype", "max_new_tokens", "max_thinking_tokens")


def require_answers(model: Path, swept: Path, examples: Mapping[str, AnyExample], number: int) -> None:
    """Has the model answer some prompts of its sweep that it answered right, drawn so that nobody can foretell which.

    `model` is the model's folder, `swept` that of the sweep, `examples` are the sweep's by their content, and `number`
    is how many are tried, 0 for none. Raises `PosgapError` if fewer than half of the responses are those that the sweep
    recorded, or if more than an eighth have a lower score. They need not all agree: another processor or precision
    decides near-ties differently. Where they cannot be tried (too little memory, an endpoint that answered) a line says
    so.
    """
    sweep, predictions = read_sweep(swept), swept_rows(read_predictions(swept))
    drawn = random.SystemRandom().sample(predictions, len(predictions))
    rows = sorted(drawn, key=lambda row: not row["correct"])[:number]
    if not rows:
        return
    if hindrance := _hindrance(sweep, model):
        log.warning("not tried whether the model answers as its sweep recorded: %s", hindrance)
        return
    responses = _responses(sweep, model, examples, rows)
    others = [pair for pair in zip(rows, responses, strict=True) if pair[0]["response"] != pair[1]]
    log.info("%d of %d responses are as the sweep recorded", len(rows) - len(others), len(rows))
    worse = [] if sweep.grading else [pair for pair in others if _rescore(sweep, examples, *pair) < pair[0]["correct"]]
    complaint, shown = "", others
    if 2 * len(others) > len(rows):
        complaint = f"only {len(rows) - len(others)} of {len(rows)} responses are as its sweep recorded"
    elif len(worse) > MAX_WORSE * len(rows):
        complaint, shown = f"{len(worse)} of {len(rows)} responses have a lower score than its sweep recorded", worse
    if complaint:
        row, response = shown[0]
        raise PosgapError(
            f"{complaint}: to {row['id']} it answers {shorten(repr(response))}, and the sweep has "
            f"{shorten(repr(row['response']))}"
        )


def _rescore(sweep: Sweep, examples: Mapping[str, AnyExample], row: Prediction, response: str) -> float:
    return metric_scorer(sweep)(response, examples[row["content"]], Placement(tuple(row["placement"]), sweep.n_docs))


def _as_asked(sweep: Sweep, model: Path) -> SweepConfig:
    """The settings of a sweep for this model. Transformers generates, which answers as vLLM does, since a promotion has
    no vLLM. `examples` and `out` are placeholders."""
    return SweepConfig(
        **sweep.settings | {"model": str(model), "examples": model, "out": model, "backend": TRANSFORMERS.name}
    )


def _hindrance(sweep: Sweep, model: Path) -> str:
    """Why the model cannot be tried; empty if it can."""
    try:
        if not BACKENDS[sweep.settings.get("backend", TRANSFORMERS.name)].local:
            return "an endpoint answered"
        if _as_asked(sweep, model).temperature:
            return "its responses were drawn, and are others each time"
        needed = needed_bytes(model, _as_asked(sweep, model).dtype)
    except (ValidationError, PosgapError):
        return "its sweep has settings that this posgap does not know"
    if needed > (available := available_bytes()):
        return f"it needs {needed / 2**30:.1f} GiB of memory, and {available / 2**30:.1f} GiB are free"
    return ""


def _responses(sweep: Sweep, model: Path, examples: Mapping[str, AnyExample], rows: Sequence[Prediction]) -> list[str]:
    """What the `pyfunc` of the version answers to the rows' prompts, without their thoughts: no loader of MLflow's, nor
    `posgap.load_model`, loads the model otherwise than it does."""
    config = _as_asked(sweep, model)
    builder = as_filled(config.lengths, config.depths, config.seed, builder_of(config), list(examples.values()))
    n_slots = len(builder.fill.placements) if builder.fill else config.n_docs
    placements = [Placement(tuple(row["placement"]), n_slots) for row in rows]
    texts = [builder.text(examples[row["content"]], placement) for row, placement in zip(rows, placements, strict=True)]
    return Answering(str(model), as_swept(sweep)).answer_texts(texts)


def require_kept_alike(model: Path, sweep: Sweep) -> None:
    """`PosgapError` if the version in whose folder the model lies is served otherwise than a sweep asked, since another
    sweep of the same model came with it when it was registered."""
    kept, asked = _registered_settings(model), json.loads(json.dumps(as_swept(sweep)))
    if others := [name for name in _SERVED_BY if name in kept and kept[name] != asked[name]]:
        raise PosgapError(
            f"MLflow serves it with the {others[0]} {kept[others[0]]!r} of the sweep it was registered by, and this "
            f"sweep asked with {asked[others[0]]!r}; sweep it as then, or promote it to another name"
        )


def as_swept(sweep: Sweep) -> dict[str, Any]:
    """How a sweep asked, apart from the wording of its task; a registered model keeps it for `Answering`."""
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
        self.builder = prompt_builder("qa", folder, longest, framing=framing)
        self.builder.stop = tuple(asked.get("stop", ()))
        self.builder.max_thinking_tokens = asked.get("max_thinking_tokens", 0)
        warn_of_device("the model", asked.get("device", ""))
        self.model = load_model(folder, asked.get("dtype") or "auto")
        self.generator = TransformersGenerator(self.model, self.builder.tokenizer, SweepConfig.default("batch_tokens"))

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
            return self.answer_texts(texts, longest)
        tokenizer = self.builder.tokenizer
        prompts = [Prompt(text, tokenizer(text)["input_ids"]) for text in texts]
        answers = complete(self.generator, prompts, Sampling(longest))
        return [str(tokenizer.decode(answer.token_ids, skip_special_tokens=True)) for answer in answers]

    def answer_texts(self, texts: Sequence[str], max_new_tokens: int = 0) -> list[str]:
        """The answers to these texts, as `predict` gives them; 0 means the sweep's own limit."""
        sampling = Sampling.for_builder(self.builder)
        sampling = replace(sampling, max_new_tokens=max_new_tokens or sampling.max_new_tokens)
        prompts = [Prompt(text, self.builder.token_ids(text)) for text in texts]
        return [answer.text for answer in complete(self.generator, prompts, sampling)]


def _load_pyfunc(path: str) -> Any:
    """What MLflow calls to load the model at `path`, the folder `data/model` of a logged one."""
    return Answering(path, _registered_settings(Path(path)))


def _registered_settings(model: Path) -> dict[str, Any]:
    """How the sweep asked that the version of this model's folder was registered by; {} where nothing is known."""
    asked = model.parent / Path(ASKED).name
    return read_object(asked) if asked.is_file() else {}
