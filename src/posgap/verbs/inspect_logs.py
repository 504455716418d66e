"""Sweeps that Inspect asks: the plan of one, and the log of one (`.eval`) as the folder of a sweep."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from pydantic import ValidationError

from posgap.data.made import made_examples
from posgap.data.reading import read_examples, write_examples
from posgap.foundation.errors import PosgapError, first_fault, first_line
from posgap.foundation.extras import import_extra
from posgap.foundation.files import write_jsonl
from posgap.foundation.locations import Location
from posgap.generation.backends import OPENAI
from posgap.generation.batches import AnswerFiles, RequestMaker
from posgap.generation.endpoint_parameters import EndpointParameters
from posgap.generation.generator import Sampling
from posgap.measurement.sweep_run import SweepRun
from posgap.options.sweep import SweepConfig
from posgap.storage.cache import fetch_location
from posgap.tasks.examples import EXAMPLE, AnyExample
from posgap.tasks.registry import TASKS
from posgap.verbs.sweep import sweep_model

SUFFIX = ".eval"
OPTIONS = "posgap"  # names a task's options among the metadata of its log
MODEL = "inspect"  # stands for the model in the ids of requests, since a task does not know it


class ModelOutput(Protocol):
    """The fields of Inspect's class of this name that posgap reads."""

    model: str
    error: str | None
    choices: Any
    stop_reason: str
    usage: Any


def config_of(options: Mapping[str, Any], examples: Location, **chosen: Any) -> SweepConfig:
    """Returns the config of a sweep that Inspect asks. Raises `PosgapError` for what its tasks cannot do."""
    for name in ("lengths", "mitigation", "base_url", "guards"):
        if options.get(name):
            raise PosgapError(f"{name}: is not for a task of Inspect; use `posgap sweep`")
    ours = {"backend": OPENAI.name, "examples": examples}
    try:
        return SweepConfig(**{"model": MODEL, "out": Path("."), **options, **chosen, **ours})
    except ValidationError as error:
        raise PosgapError(first_fault(error)) from None


def maker_of(config: SweepConfig) -> RequestMaker:
    """Returns the request maker for such a sweep, with the samples' ids."""
    return RequestMaker(MODEL, EndpointParameters.of(config), config.framing())


def plan_samples(
    options: Mapping[str, Any], examples: str = "", n_examples: int = 100
) -> tuple[SweepConfig, Sampling, list[dict[str, Any]]]:
    """Returns the sweep of a file of examples, or of `n_examples` made ones, how it draws answers, and the fields of
    Inspect's samples, one for each request."""
    config = config_of(options, Path(examples or "made"))
    task = TASKS[config.task]
    if examples:
        rows = read_examples(Path(examples))
    else:
        rows = list(made_examples(task, n_examples, config.n_docs, config.seed))
    prompts = SweepRun.plan(config.sweep_settings(), config.builder(), rows).prompts
    maker = maker_of(config)
    samples: dict[str, dict[str, Any]] = {}
    for example, numbers in prompts.list_missing(()).items():
        for number in numbers:
            asked, placement, _ = prompts.question(example, number)
            request = maker.request(prompts.prompt(example, number), prompts.sampling)
            told = {"position": placement.name, "is_baseline": bool(placement.baseline)}
            told["example"] = asked.model_dump(mode="json")
            right = list(task.right_answers(asked, placement))
            sample = {"id": request.id, "input": request.body["messages"], "target": right, "metadata": told}
            samples.setdefault(request.id, sample)
    return config, prompts.sampling, list(samples.values())


def body_of(output: ModelOutput) -> dict[str, Any]:
    """Returns a model's output as the body of an OpenAI completion, or of an error if there is none."""
    if not output.choices:
        return {"error": {"message": output.error or "the model gave no answer"}}
    text = ""
    thoughts = ""
    content = output.choices[0].message.content
    for part in [content] if isinstance(content, str) else content:
        text += part if isinstance(part, str) else getattr(part, "text", "")
        thoughts += getattr(part, "reasoning", "")
    finish = "stop" if output.stop_reason == "unknown" else output.stop_reason
    usage = output.usage
    tokens = {"prompt_tokens": usage.input_tokens, "completion_tokens": usage.output_tokens} if usage else {}
    message = {"content": text, "reasoning_content": thoughts}
    return {"choices": [{"message": message, "finish_reason": finish}], "usage": tokens, "model": output.model}


def is_position_log(file: Path) -> bool:
    """Whether a file is Inspect's log of posgap's task. Raises `PosgapError` if it is no log."""
    return _options_in(_read_log(file, header_only=True)) is not None


def _read_log(file: Path, header_only: bool) -> Any:
    reader = import_extra("inspect_ai.log")
    try:
        return reader.read_eval_log(str(file), header_only=header_only)
    except Exception as error:  # of the archive, of its JSON or of Inspect's own classes
        raise PosgapError(f"{file}: Inspect cannot read this log: {first_line(error)}") from None


def _options_in(log: Any) -> Mapping[str, Any] | None:
    """The options of posgap's task that a log names; None if it is of another task."""
    options = (log.eval.metadata or {}).get(OPTIONS)
    return options if isinstance(options, Mapping) else None


def sweep_of_log(file: Path) -> Path:
    """Returns the folder of the sweep that a log holds, which is written beside it: `NAME.posgap` for `NAME.eval`.

    The examples come from the log itself. Raises `PosgapError` if it is of another task, or lacks samples.
    """
    log = _read_log(file, header_only=False)
    options = _options_in(log)
    if options is None:
        raise PosgapError(f"{file}: is a log of the task {log.eval.task}; posgap reads only logs of posgap/position")
    examples: dict[str, AnyExample] = {}
    answers = []
    for sample in log.samples or []:
        try:
            example = EXAMPLE.validate_python((sample.metadata or {}).get("example"))
        except ValidationError as error:
            raise PosgapError(
                f"{file}: sample {sample.id}: its example: {first_fault(error)}; run the task again"
            ) from None
        examples.setdefault(example.id, example)
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
