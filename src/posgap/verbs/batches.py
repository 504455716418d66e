"""A sweep by a batch: its requests go into files, and its answers come from files."""

from pathlib import Path

from posgap.data.reading import read_examples
from posgap.foundation.errors import PosgapError
from posgap.foundation.files import work_folder
from posgap.foundation.locations import is_uri
from posgap.foundation.printing import show
from posgap.generation.batches import AnswerFiles, RequestIds, RequestMaker, RequestWriter
from posgap.generation.endpoint_parameters import EndpointParameters
from posgap.measurement.sweep_run import SweepRun
from posgap.measurement.unfinished import Unfinished
from posgap.options.sweep import SweepConfig, SweepVerbConfig
from posgap.storage.cache import fetch_location
from posgap.tasks.prompts import TextPromptBuilder
from posgap.verbs.inputs import on_this_machine, sources


def write_requests(config: SweepVerbConfig) -> None:
    """Writes the requests of a sweep that are not answered yet into a folder, which must be empty or new, and says into
    which files."""
    if is_uri(config.requests):
        raise PosgapError(f"--requests {config.requests}: write them to this machine")
    folder = Path(str(config.requests))
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise PosgapError(f"--requests {folder}: already exists; name a new folder")
    asked = config.with_examples(_examples(config))
    asked = on_this_machine(asked, sources(asked))
    builder = asked.builder()
    prompts = SweepRun.plan(asked.sweep_settings(), builder, read_examples(asked.examples)).prompts
    missing = prompts.list_missing(Unfinished(work_folder(asked.out), prompts.identity()).completions)
    writer = RequestWriter(_maker(asked, builder), config.batch_format, folder)
    folder.mkdir(parents=True, exist_ok=True)
    for _ in prompts.complete(writer, missing, prompts.sampling):
        pass
    files = [str(file) for file in writer.files]
    words = "\n".join([f"{len(writer.written):,} requests:", *files])
    show(words, {"requests": len(writer.written), "files": files})


def read_answers(config: SweepVerbConfig) -> AnswerFiles:
    """Reads the answers to the requests of a sweep."""
    asked = config.with_examples(_examples(config))
    files = [fetch_location(file) for file in config.answers]
    return AnswerFiles(files, _maker(asked, asked.builder()))


def require_asked(answers: AnswerFiles, sweep_run: SweepRun) -> None:
    """Raises `PosgapError` if an answer is to no prompt of the sweep."""
    prompts = sweep_run.prompts
    asked = RequestIds(answers.maker)
    for _ in prompts.complete(asked, prompts.list_missing(()), prompts.sampling):
        pass
    answers.require_asked(asked.ids)


def _examples(config: SweepVerbConfig) -> Path:
    if config.examples is None:
        raise PosgapError("--requests and --answers: are of examples; give --examples")
    return config.examples


def _maker(config: SweepConfig, builder: TextPromptBuilder) -> RequestMaker:
    return RequestMaker(config.model, EndpointParameters.of(config), builder.framing)
