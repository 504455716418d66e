"""Runs the commands of docs/results.md, each of which writes its figures into build/results/.

    python benchmarks/results.py                        all of them, one after another: an hour
    python benchmarks/results.py weights demo           these alone
    python benchmarks/results.py --quick                every script with --quick: ten minutes

`make results` calls it, and `make benchmarks` with `--quick`. The page is the list: this script reads the commands
there. A person takes new figures, their day and their machine over into the page. A command that fails does not stop
the others.
"""

import argparse
import json
import subprocess
import sys
import time

from report import ROOT, listed

# Scripts without --quick, and why.
EXEMPT = {
    "report": "is what the others share",
    "results": "runs the others",
    "screenshots": "takes pictures of a whole demo by a Chromium",
    "transcripts": "runs a page's commands; test_transcripts.py and test_real.py do so with some",
}


def main() -> None:
    commands = {name: cells["command"].strip("`") for name, cells in listed().items()}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="name", help="only these; by default all of docs/results.md")
    parser.add_argument("--quick", action="store_true", help="every script, each for less than a minute")
    options = parser.parse_args()
    if options.quick:
        scripts = sorted(file.stem for file in (ROOT / "benchmarks").glob("*.py") if file.stem not in EXEMPT)
        if failed := [name for name in scripts if not is_quick(name)]:
            raise SystemExit(f"failed: {', '.join(failed)}")
        return
    if unknown := [name for name in options.names if name not in commands]:
        parser.error(f"{', '.join(unknown)}: not in docs/results.md, which has {', '.join(commands)}")
    failed = [name for name in options.names or commands if not run(name, commands[name])]
    if failed:
        raise SystemExit(f"not written: {', '.join(failed)}")


def is_quick(name: str) -> bool:
    """Whether a script ends well with `--quick`, and its last line is a JSON object by which nothing differs."""
    began = time.monotonic()
    call = [sys.executable, str(ROOT / "benchmarks" / f"{name}.py"), "--quick"]
    done = subprocess.run(call, cwd=ROOT, capture_output=True, text=True)
    try:
        figures = json.loads(done.stdout.strip().rpartition("\n")[2])
        right = done.returncode == 0 and isinstance(figures, dict) and False not in figures.values()
    except json.JSONDecodeError as error:
        figures, right = error, False
    print(f"{name}: {time.monotonic() - began:.0f} s, {figures}", flush=True)
    if not right:
        print(done.stderr[-3000:], file=sys.stderr)
    return right


def run(name: str, command: str) -> bool:
    """Whether a command wrote its figures."""
    print(f"\n== {name}: {command}", flush=True)
    for part in command.split(" && "):
        program, *rest = part.split()
        call = [sys.executable, str(ROOT / "benchmarks" / program), *rest]
        if subprocess.run(call, cwd=ROOT).returncode:
            return False
    return True


if __name__ == "__main__":
    main()
