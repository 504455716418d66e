"""What commands cost that have little to do: seconds of CPU to print help, to refuse, to reuse, to ask an endpoint.

    python benchmarks/start_times.py [--write] [--times 3] [--before CHECKOUT]

Each command is a process of its own, of which the least seconds of CPU of `times` runs count; with `--before` the same
commands run with the sources of another checkout as well.

- help: of every verb.
- refused: of every verb that must be given something to read or a name: there is no such file, or it can be no name.
- reused: an output that is complete. What is in it plays no part, and so each stage's work was replaced by none here.
- an endpoint: three prompts to a server on this machine, without tracking; and with it, into an MLflow database that
  exists. The difference is what MLflow costs.

The last line is JSON: the most seconds of each kind of command.
"""

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import click
from report import conclude

from posgap.cli.main import build
from posgap.cli.verbs import STAGES, TYPED
from posgap.foundation.tables import markdown
from posgap.stages import frame as stage
from posgap.tasks.examples import KVExample
from posgap.tasks.reading import write_examples
from posgap.tracking.runs import Run
from posgap.tracking.server import make_ready

LIMIT = 1.5  # seconds of CPU that help, a refusal and a reused output may take
LARGE = ("torch", "transformers", "mlflow", "matplotlib", "pandas", "kfp", "boto3")
# Some stages that are reused, with their inputs.
REUSED = {
    "validate": ("examples", "model"),
    "teacher": ("examples", "model"),
    "distill": ("examples", "model", "responses"),
    "scale_search": ("examples", "model"),
    "mitigate": ("examples", "model"),
    "diagnose": ("sweep", "examples", "model"),
    "rollout_measure": ("texts", "model"),
}
COMMAND = f"""
import sys, time
{{before}}
from posgap.cli.main import main
try:
    main(sys.argv[1:])
except SystemExit as ended:
    loaded = [name for name in {LARGE} if name in sys.modules]
    print("ended", ended.code, time.process_time(), *loaded, file=sys.stderr)
"""
UNTRACKED = """
import contextlib, posgap.stages.frame
from posgap.tracking.runs import Run
posgap.stages.frame.start_run = lambda *_: contextlib.nullcontext(Run())
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--before", type=Path, help="a checkout of another version, measured first")
    parser.add_argument("--write", action="store_true", help="put the figures into build/results/")
    arguments = parser.parse_args()
    before = None
    if arguments.before:
        again = [sys.executable, __file__, "--times", str(arguments.times)]
        variables = os.environ | {"PYTHONPATH": str(arguments.before.resolve() / "src")}
        before = rows(subprocess.run(again, env=variables, check=True, capture_output=True, text=True).stdout)
    with tempfile.TemporaryDirectory() as folder, served() as address:
        os.chdir(folder)
        os.environ["OMP_NUM_THREADS"] = "1"
        os.environ["MLFLOW_TRACKING_URI"] = f"sqlite:///{folder}/mlflow.db"
        make_ready(Path(folder) / "mlflow.db")
        measured = {
            f"{kind}: `{name}`": least(kind, command, untracked, arguments.times)
            for kind, name, command, untracked in commands(Path(folder), address)
        }
    versions = {"before": before, "now": measured} if before else {"now": measured}
    table = markdown(
        ["command", *(f"{version}, s" for version in versions), *(f"imported {version}" for version in versions)],
        [
            [
                name,
                *(f"{each[name][0]:.2f}" for each in versions.values()),
                *(each[name][1] for each in versions.values()),
            ]
            for name in measured
            if not arguments.write or slow(name, versions) or name.partition(":")[0] not in ("help", "refused")
        ],
    )
    of_kind = {name: name.partition(":")[0] for name in measured}
    seconds = {kind: max(measured[name][0] for name in measured if of_kind[name] == kind) for kind in of_kind.values()}
    figures = {"verbs": sum(kind == "help" for kind in of_kind.values())}
    figures |= {kind: round(most, 2) for kind, most in seconds.items()}
    text = """
## What a command costs before it does anything

Written by `benchmarks/start_times.py --write` on {date}: seconds of CPU, the least of several runs, each a process of
its own; other programs kept the machine busy. Help was asked of all {verbs} verbs, a refusal of those that must be
given something to read or a name; of both, those stand here that took more than {limit} s. The tracked sweep writes
into an MLflow database on this machine, which exists: what it takes beyond the other is MLflow's. Before stages looked
for a complete output ahead of their imports, a reused one took 1.2 to 9.3 s, and a refused `distill` 7.2 s, on a slower
machine.
"""
    text = text.replace("{verbs}", str(figures["verbs"])).replace("{limit}", str(LIMIT))
    conclude("start-times", text, [table], figures, arguments.write)


def slow(name: str, versions: dict[str, dict[str, tuple[float, str]]]) -> bool:
    """Whether a command took more than it may, by one of the versions."""
    return any(measured[name][0] > LIMIT for measured in versions.values())


def rows(said: str) -> dict[str, tuple[float, str]]:
    """What a run of this script said in its table: the seconds and the imports of each command."""
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in said.splitlines() if line[:1] == "|"]
    return {name: (float(seconds), imported) for name, seconds, imported in cells[2:]}


def commands(folder: Path, address: str) -> Iterator[tuple[str, str, list[str], bool]]:
    """Kind, name, words and whether it goes without tracking, of each command that is measured."""
    for path, verb in verbs(build()):
        yield "help", " ".join([*path, "--help"]), [*path, "--help"], False
        if given := refusable(verb):
            yield "refused", " ".join(path), [*path, *given], False
    examples = folder / "examples.jsonl"
    records = [(f"{i:02x}", f"{i:x}") for i in range(6)]
    write_examples(examples, [KVExample(id="1", question="03", answers=["3"], key="03", value="3", records=records)])
    (folder / "folder").mkdir()
    (folder / "folder" / "any.json").write_text("{}")
    for name, inputs in REUSED.items():
        given = {field: str(examples if field in ("examples", "texts") else folder / "folder") for field in inputs}
        complete(name, given | {"out": str(folder / name)})
        asked = [word for field, value in given.items() for word in (f"--{field}", value)]
        yield "reused", TYPED[name], [*TYPED[name].split(), *asked, "--out", str(folder / name)], False
    asked = ["sweep", "--backend", "openai", "--model", "m", "--base-url", address, "--examples", str(examples)]
    asked += ["--n-docs", "3", "--out", str(folder / "swept"), "--force"]
    yield "an endpoint", "sweep, without tracking", asked, True
    yield "an endpoint, tracked", "sweep", asked, False
    yield "reused", "sweep", asked[:-1], False


def verbs(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """A command and all below it, each with the words that call it."""
    yield path, command
    for name, inner in command.commands.items() if isinstance(command, click.Group) else ():
        yield from verbs(inner, (*path, name))


def refusable(verb: click.Command) -> list[str]:
    """What a verb must be given, with a file or name that cannot be; empty where it would have nothing to refuse."""
    words, nowhere = [], "nothing/at/all"
    for option in verb.params:
        if option.required:
            value = f"refused-{verb.name}" if option.name == "out" else nowhere
            if isinstance(option.type, click.Choice):
                value = option.type.choices[0]
            words += [value] if isinstance(option, click.Argument) else [option.opts[0], value]
    return words if nowhere in words else []


def complete(name: str, values: dict[str, str]) -> None:
    """Makes the output of a stage, whose work is none."""

    def work(config: object, out: Path, run: Run) -> None:
        pass

    work.__name__ = name
    tracked = stage.start_run
    stage.start_run = lambda *_: contextlib.nullcontext(Run())
    stage.stage(work)(STAGES[name].config(**values))
    stage.start_run = tracked


def least(kind: str, command: list[str], untracked: bool, times: int) -> tuple[float, str]:
    """The least seconds of CPU of a command, and which large libraries it imported."""
    program = COMMAND.format(before=UNTRACKED if untracked else "")
    seconds = []
    for _ in range(times):
        done = subprocess.run([sys.executable, "-c", program, *command], capture_output=True, text=True)
        code, spent, *loaded = done.stderr.splitlines()[-1].split()[1:]
        if code != ("2" if kind == "refused" else "0") or (kind == "reused") != ("is complete, reused" in done.stderr):
            raise SystemExit(f"{command} ended with {code}: {done.stderr}")
        seconds.append(float(spent))
    return min(seconds), " ".join(loaded)


@contextlib.contextmanager
def served() -> Iterator[str]:
    """The address of a server that answers key-value prompts rightly."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True
        log_message: Callable[..., None] = lambda *_: None

        def do_POST(self) -> None:
            text = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["messages"][0]["content"]
            shown, _, question = text.rpartition("Key:")
            key = re.findall(r"[0-9a-f]{2}", question)[0]
            said = dict(re.findall(r'"(\w+)": "(\w+)"', shown))[key]
            choice = {"index": 0, "message": {"role": "assistant", "content": said}, "finish_reason": "stop"}
            content = json.dumps({"choices": [choice]}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()


if __name__ == "__main__":
    main()
