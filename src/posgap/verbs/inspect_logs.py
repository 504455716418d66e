"""Sweeps that Inspect asks: the plan of one, and the log of one (`.eval`) as the folder of a sweep."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from pydantic import ValidationError

from posgap.data.reading import write_examples
from posgap.foundation.errors import PosgapError, first_fault
from posgap.foundation.extras import import_extra
from posgap.foundation.files import write_jsonl
from posgap.foundation.locations import Location
from posgap.generation.backends import OPENAI
from posgap.generation.batches import AnswerFiles, RequestMaker
from posgap.generation.endpoint_parameters import EndpointParameters
from posgap.options.sweep import SweepConfig
from posgap.storage.cache import fetch_location
from posgap.tasks.examples import EXAMPLE, AnyExample
from posgap.verbs.sweep import sweep_model

SUFFIX = ".eval"
OPTIONS = "posgap"  # names a task's options among the metadata of its log
MODEL = "inspect"  # stands for the model in the ids of requests, since a task does not know it


class ModelOutput(Protocol):
    """What posgap reads of Inspect's class of this name."""

    model: str
    choices: Any
    stop_reason: str
    usage: Any


def config_of(options: Mapping[str, Any], examples: Location, **chosen: Any) -> SweepConfig:
    """Returns the config of a sweep that Inspect asks. Raises `PosgapError` for what its tasks cannot do."""
    for name in ("lengths", "mitigation", "base_url"):
        if options.get(name):
            raise PosgapError(f"{name}: is not for a task of Inspect; use `posgap sweep`")
    ours = {"backend": OPENAI.name, "examples": examples}
    try:
        return SweepConfig(**{"model": MODEL, "out": Path("."), **options, **chosen, **ours})
    except ValidationError as error:
        raise PosgapError(first_fault(error)) from None


def maker_of(config: SweepConfig) -> RequestMaker:
    """Returns what makes the requests of such a sweep, whose ids are those of the samples."""
    return RequestMaker(MODEL, EndpointParameters.of(config), config.framing())


def body_of(output: ModelOutput) -> dict[str, Any]:
    """Returns a model's output as the body of an OpenAI completion."""
    text = ""
    thoughts = ""
    content = output.choices[0].message.content if output.choices else ""
    for part in [content] if isinstance(content, str) else content:
        text += part if isinstance(part, str) else getattr(part, "text", "")
        thoughts += getattr(part, "reasoning", "")
    finish = "stop" if output.stop_reason == "unknown" else output.stop_reason
    usage = output.usage
    tokens = {"prompt_tokens": usage.input_tokens, "completion_tokens": usage.output_tokens} if usage else {}
    message = {"content": text, "reasoning_content": thoughts}
    return {"choices": [{"message": message, "finish_reason": finish}], "usage": tokens, "model": output.model}


def is_position_log(file: Path) -> bool:
    """Whether a file is Inspect's log of posgap's task."""
    header = import_extra("inspect_ai.log").read_eval_log(str(file), header_only=True)
    return OPTIONS in (header.eval.metadata or {})


def sweep_of_log(file: Path) -> Path:
    """Returns the folder of the sweep that a log holds, which is written beside it: `NAME.posgap` for `NAME.eval`.

    The examples come from the log itself. Raises `PosgapError` if it is of another task, or lacks samples.
    """
    log = import_extra("inspect_ai.log").read_eval_log(str(file))
    options = (log.eval.metadata or {}).get(OPTIONS)
    if options is None:
        raise PosgapError(f"{file}: is a log of the task {log.eval.task}; posgap reads those of posgap/position")
    examples: dict[str, AnyExample] = {}
    answers = []
    for sample in log.samples or []:
        row = sample.metadata["example"]
        examples.setdefault(row["id"], EXAMPLE.validate_python(row))
        if sample.error:
            answers.append({"id": sample.id, "error": {"message": sample.error.message}})
        else:
            answers.append({"id": sample.id, **body_of(sample.output)})
    asked_for = log.eval.dataset.samples
    if len(answers) != asked_for:
        raise PosgapError(
            f"{file}: holds {len(answers)} answers to {asked_for} samples (status {log.status}); finish it with "
            "`inspect eval-retry`, and leave out --limit and --epochs (-T samples asks several times)"
        )
    place = file.with_suffix(".posgap")
    place.mkdir(exist_ok=True)
    asked = place / "examples.jsonl.gz"
    answered = place / "answers.jsonl"
    before = answered.read_bytes() if answered.exists() else b""
    write_examples(asked, examples.values())
    write_jsonl(answered, answers)
    is_other = answered.read_bytes() != before
    config = config_of(options, asked, model=log.eval.model, out=place / "sweep", force=is_other)
    return fetch_location(sweep_model(config, AnswerFiles([answered], maker_of(config))))
