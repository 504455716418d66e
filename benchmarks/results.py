"""Runs the commands of docs/results.md, each of which writes its figures into build/results/.

    python benchmarks/results.py                        all of them, one after another: some fifteen hours
    python benchmarks/results.py weights demo           these alone
    python benchmarks/results.py --times 3 scale-search three times, to see how far its figures spread

`make results` calls it. The page is the list: this script reads the commands there. A person takes new figures, their
day and their machine over into the page. A command that fails does not stop the others.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from report import ROOT, listed

FILES = {"KV75": "kv-retrieval-75_keys.jsonl.gz", "KV140": "kv-retrieval-140_keys.jsonl.gz", "DATA": "."}
DATA = os.environ.get("POSGAP_PUBLIC_DATA") or ROOT.parent / "shared" / "data"


def main() -> None:
    commands = {name: cells["command"].strip("`") for name, cells in listed().items()}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="name", help="only these; by default all of docs/results.md")
    parser.add_argument("--data", type=Path, default=DATA, help=f"folder of the public files ({DATA})")
    parser.add_argument("--times", type=int, default=1, help="how often each is run (1)")
    options = parser.parse_args()
    if unknown := [name for name in options.names if name not in commands]:
        parser.error(f"{', '.join(unknown)}: not in docs/results.md, which has {', '.join(commands)}")
    failed = [
        name
        for name in options.names or commands
        if not run(name, in_full(commands[name], options.data), options.times)
    ]
    if failed:
        raise SystemExit(f"not written: {', '.join(failed)}")


def in_full(command: str, data: Path) -> str:
    """A command with the public files in place of their short names."""
    return " ".join(str((data / FILES[word]).resolve()) if word in FILES else word for word in command.split())


def run(name: str, command: str, times: int) -> bool:
    """Whether a command wrote its figures; where it ran several times, how far they spread is printed."""
    print(f"\n== {name}: {command}", flush=True)
    seen = []
    for _ in range(times):
        for part in command.split(" && "):
            program, *rest = part.split()
            call = [sys.executable, str(ROOT / "benchmarks" / program), *rest]
            done = subprocess.run(call, cwd=ROOT, stdout=subprocess.PIPE, text=True)
            print(done.stdout, flush=True)
            if done.returncode:
                return False
        seen.append(done.stdout.strip().rpartition("\n")[2])
    if times > 1 and (ranges := spread([json.loads(line) for line in seen])):
        print(f"{name}: {times} runs: {ranges}", flush=True)
    return True


def spread(runs: Sequence[Mapping[str, object]]) -> str:
    """The range of each number over several runs."""
    numbers = [name for name, value in runs[0].items() if type(value) in (int, float)]
    ranges = [f"{name} {min(run[name] for run in runs):g} to {max(run[name] for run in runs):g}" for name in numbers]
    return ", ".join(ranges)


if __name__ == "__main__":
    main()
