"""Stages as processes of their own, killed at any moment: the same command heals, and nothing of it can be told after.

`CHAOS_SEED` chooses the moments. With `CHAOS_FUZZ_SECONDS` more commands are tried, each killed three times in a row.
"""

import os
import random
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from zlib import crc32

import mlflow
import pytest
from endpoint import Endpoint, retrieve, served
from examples import kv_example
from places import but_for_seconds
from warm import SERVER
from warm_forks import command

from posgap.data.reading import write_examples
from posgap.foundation import files

SEED = int(os.environ.get("CHAOS_SEED", "0"))
LONG = "CHAOS_FUZZ_SECONDS" in os.environ
KILLS = 3 if LONG else 1
MAX_SHOWN = 120  # seconds of a command

PROMPTS = "--examples {here}/examples.jsonl --model {model} --n-docs 4 --max-new-tokens 2"
# Before anything is killed.
PREPARED = {
    "first": f"sweep {PROMPTS} --limit 8 --shard 1/2",
    "second": f"sweep {PROMPTS} --limit 8 --shard 2/2",
    "responses": f"teacher {PROMPTS} --advantageous 1 --keep-incorrect",
}
# Each with the exit code at which it ends; the first four in every run of the tests, all in `make chaos`.
COMMANDS = {
    "sweep": (f"sweep {PROMPTS} --batch-tokens 400", 0),
    "sweep, endpoint": ("sweep --examples {here}/examples.jsonl --model served --backend openai --base-url {url} "
                        "--n-docs 4 --concurrency 2", 0),
    "distill": ("distill --examples {here}/examples.jsonl --model {model} --responses {here}/responses --k 2 "
                "--batch-size 16 --save-steps 2", 0),
    "merge": ("merge {here}/first {here}/second", 0),
    "teacher": (f"teacher {PROMPTS} --advantageous 1 --keep-incorrect", 0),
    "scale search": ("scale search --examples {here}/examples.jsonl --model {values} --n-docs 4 --max-new-tokens 1 "
                     "--metric contains_any --population 6 --generations 3", 0),
    "gate": ("gate --candidate {here}/first --base {here}/first", 3),
    "validate": ("validate --examples {here}/examples.jsonl --model {model} --n-docs 4", 0),
    "apply": ("apply --model {model} --mitigation lpes --mitigation-settings {{\"factors\":[1,1.5]}}", 0),
    "report": ("report --state SUCCEEDED", 0),
    "data make": ("data make kv --n-examples 3000", 0),
}  # fmt: skip


Run = Callable[..., int | None]


@pytest.fixture(scope="module")
def here(tmp_path_factory, model_folder, empty_store) -> Iterator[Path]:
    """A folder with what the commands read."""
    folder = tmp_path_factory.mktemp("kills")
    write_examples(folder / "examples.jsonl", [kv_example(i, 8) for i in range(48)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{folder}/mlflow.db")
        shutil.copy(empty_store, folder / "mlflow.db")
        for name, words in PREPARED.items():
            assert run(folder, words.format(here=folder, model=model_folder), folder / name) == 0, shown(folder)
    yield folder


def run(folder: Path, words: str, out: Path, seconds: float = MAX_SHOWN) -> int | None:
    """The exit code of a command, which is killed after so many seconds; None where it was."""
    words_and_out = [*words.split(), "--out", str(out)]
    child = SERVER.Process(target=command, args=(words_and_out, folder / "log", dict(os.environ)))
    child.start()
    child.join(seconds)
    if child.is_alive():
        child.kill()
        child.join()
    return None if child.exitcode == -9 else child.exitcode


def shown(folder: Path) -> str:
    return (folder / "log").read_text()[-3000:]


def content(out: Path) -> dict[str, bytes]:
    """What an output holds, but for its manifest, which has times and run ids, and for the seconds of a sweep."""
    if out.is_file():
        return {"": out.read_bytes()}
    return {str(file.relative_to(out)): but_for_seconds(file) for file in out.rglob("*")
            if file.is_file() and file.name != "manifest.json"}  # fmt: skip


@pytest.fixture
def url() -> Iterator[str]:
    def answered(text: str) -> str:
        return ("CORRECT", "INCORRECT")[crc32(text.encode()) % 2] if "<response-" in text else retrieve(text)

    with served(Endpoint(answered, seconds=0.005)) as endpoint:
        yield endpoint.url


@pytest.mark.full
@pytest.mark.parametrize("name", list(COMMANDS) if LONG else list(COMMANDS)[:4])
def test_a_command_killed_at_any_moment_is_healed_by_the_next(
    name, here, model_folder, values_folder, url, tmp_path, record_property
):
    words, code = COMMANDS[name]
    words = words.format(here=here, model=model_folder, values=values_folder, url=url)
    draw, began = random.Random(f"{SEED} {name}"), time.monotonic()
    assert run(tmp_path, words, tmp_path / "undisturbed") == code, shown(tmp_path)
    seconds = time.monotonic() - began
    out, kills = tmp_path / "killed" / "out", 0
    for _ in range(4 * KILLS):
        began = time.monotonic()
        end = run(tmp_path, words, out, draw.uniform(0, seconds))
        assert end in (None, code), shown(tmp_path)
        kills += end is None
        if end is not None:  # it was quicker than the first, and must begin again to be killed
            seconds = time.monotonic() - began
            files.delete_path(out)
        if kills == KILLS:
            break
    assert kills, "each time it had ended before it was to be killed"
    assert run(tmp_path, words, out) == code, shown(tmp_path)
    assert content(out) == content(tmp_path / "undisturbed")
    left = [path for path in tmp_path.rglob(f"{files.HOME_PREFIX}*/**/*") if path.is_file() and path.stat().st_size]
    assert left == [], shown(tmp_path)
    runs = mlflow.search_runs(search_all_experiments=True, output_format="list")
    assert "RUNNING" not in {each.info.status for each in runs}
    record_property("kills", kills)
