"""`make chaos`: the tests of faults with other moments and values each time, until the time is up.

It writes what was tried, what was expected, what happened and when into a table of docs/tests.md, after each file of
tests. Rows that were not tried stay as they were. It ends with 1 if anything happened that was not expected.
"""

import argparse
import datetime
import os
import re
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from posgap.foundation import tables

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "benchmarks" / "tables" / "chaos.md"
FUZZ_SECONDS = 60  # of a round, for each of the two fuzzers
MAX_SHOWN = 7200  # seconds of a file, which takes minutes; only one that hangs takes longer
HEALED = "the next command heals it: the same bytes, nothing left beside them, no run left RUNNING"
REFUSED = "a documented exit code and at most one line; no traceback, no secret"
HANGS = "no test, but a whole file of them"
# What is tried, by the test that does it, what is expected, and the unit of what is counted where that is not the test.
TRIED = {
    "test_a_command_killed_at_any_moment_is_healed_by_the_next": ("SIGKILL: {}", HEALED, "kills"),
    "test_any_verb_with_any_values_ends_in_one_line": ("any verb with hostile values", REFUSED, "commands"),
    "test_a_file_that_is_not_as_it_was_written_is_refused_in_one_line": (
        "files with changed fields", REFUSED, "commands"),
    "test_whatever_the_server_does_the_stage_ends_and_its_run_is_complete_in_the_end": (
        "MLflow, from some request on: {}",
        "the stage ends with its output; once MLflow is back, it has the whole run", ""),
    "test_a_server_that_errs_now_and_then_is_borne": (
        "MLflow, at 3 of 10 requests: some fault", "borne: the run is complete", ""),
    "test_the_registry_s_answer_is_one_line_whatever_the_server_does": (
        "MLflow's registry, always: {}", "one line, exit code 2", ""),
    "test_what_s3_does_for_ever_is_one_line_and_harms_nothing": (
        "S3, from some request on: {}", "one line; the files here are whole, and the same command goes on", ""),
    "test_an_s3_that_errs_now_and_then_is_borne": (
        "S3, at 3 of 10 requests: some fault", "borne: what arrives is whole", ""),
    "test_ten_requests_that_s3_asks_to_slow_down_are_borne": ("S3: ten times 503 SlowDown", "borne", ""),
    "test_whatever_fails_the_best_candidate_of_a_run_ends_as_the_one_champion": (
        "2 to 8 promotions at once, some fault at 1 of 10 requests: MLflow on {}",
        "one champion, the best; promotion.json true; no version twice; no moment without a champion", "promotions"),
    "test_a_promotion_killed_at_any_moment_is_completed_by_the_next": (
        "SIGKILL: promote, MLflow on {}", "the next completes it: one version, and always a champion", "kills"),
    "test_a_registry_verb_killed_at_any_moment_leaves_one_truth": (
        "SIGKILL: approve, rollback, MLflow on {}",
        "the champion before or after; the next completes it; one history, no lease held", "kills"),
    "test_a_promotion_that_mlflow_breaks_off_leaves_the_champion": (
        "MLflow during a promotion: {}",
        "one line; the champion stays; the same command then promotes, nothing twice", ""),
    "test_a_server_killed_during_a_promotion_has_it_completed_after_its_restart": (
        "SIGKILL: MLflow's server, {}", "one line; the same command then promotes: one history, nothing twice", ""),
    "test_a_command_that_is_disturbed_at_any_request_ends_no_run_otherwise": (
        "MLflow, at each request of the next command: 500", "the run is in MLflow in the end, FINISHED and whole", ""),
    "test_a_killed_pipeline_goes_on_where_it_was": (
        "SIGKILL: pipeline run, at ten moments",
        "each stage FINISHED once; training goes on from its newest checkpoint; the rest is closed as KILLED", ""),
    "test_a_pipeline_stopped_within_its_steps_ends_with_one_champion": (
        "SIGKILL, SIGTERM, Ctrl-C: pipeline run --smoke within its steps, {}",
        "the next ends with one version, one champion, one history; each output verified, no lease held", "kills"),
    "test_an_http_proxy_that_errs_now_and_then_is_borne": (
        "an HTTP proxy before an endpoint, at 3 of 10 requests: some fault", "borne: every answer, in order", ""),
    "test_what_an_http_proxy_does_for_ever_is_one_line": (
        "an HTTP proxy before an endpoint, always: {}", "one line that names the address", ""),
    "test_a_hub_that_hangs_is_waited_for_briefly": ("the Hugging Face hub never answers", "one line, in time", ""),
    HANGS: ("all of {}, one after another", "each comes to an end", ""),
}  # fmt: skip
FILES = ("verbs/test_kills.py", "verbs/test_fuzz.py", "generation/test_openai.py", "models/test_hub.py",
         "storage/test_s3_faults.py", "tracking/test_tracking.py", "tracking/test_lying_server.py",
         "tracking/test_promotion_races.py", "pipelines/test_killed_pipelines.py",
         "pipelines/test_killed_steps.py")  # fmt: skip


@dataclass
class Row:
    """How often something was tried, and what happened otherwise than expected."""

    expected: str
    tried: int = 0
    unit: str = ""
    seeds: list[int] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    @property
    def happened(self) -> str:
        often = f"{self.tried} {self.unit or 'times'}" if self.unit or self.tried > 1 else "once"
        return f"as expected ({often})" if not self.faults else "; ".join(self.faults)

    @property
    def when(self) -> str:
        seeds = f"seed {self.seeds[0]}" if len(self.seeds) == 1 else f"seeds {self.seeds[0]} to {self.seeds[-1]}"
        return f"{datetime.datetime.now(datetime.UTC):%d %B %Y}, {seeds}"


def results(file: str, tests: str, seed: int, folder: Path) -> Iterator[tuple[str, str, dict[str, str], str]]:
    """One file of tests in a round: test, its parameter, what it counted, and what went wrong."""
    report = folder / f"{seed}-{file.replace('/', '-')}.xml"
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:xdist",
        f"--junit-xml={report}",
        *("-m", ""),  # also those of each night
        "-k",
        f"({' or '.join(name for name in TRIED if name != HANGS)}) and ({tests})",
    ]
    environment = os.environ | {
        "CHAOS_SEED": str(seed),
        "CHAOS_FUZZ_SECONDS": str(FUZZ_SECONDS),
        "OMP_NUM_THREADS": "1",
    }
    try:
        subprocess.run([*command, file], cwd=ROOT / "tests", env=environment, timeout=MAX_SHOWN)
    except subprocess.TimeoutExpired:
        yield HANGS, file, {}, f"it took longer than {MAX_SHOWN / 3600:g} hours"
        return
    for case in ElementTree.parse(report).iter("testcase"):
        name, _, parameter = case.get("name", "").rstrip("]").partition("[")
        counted = {each.get("name", ""): each.get("value", "") for each in case.iter("property")}
        fault = next((each.get("message", "") for kind in ("failure", "error") for each in case.iter(kind)), "")
        yield name, parameter, counted, fault


def page(rows: dict[str, Row], before: dict[str, list[str]]) -> str:
    """The table that docs/tests.md shows: these rows, and those of before that were not tried again."""
    tried = {what: [what, row.expected, row.happened.replace("|", "\\|"), row.when] for what, row in rows.items()}
    cells = [cells for _, cells in sorted((before | tried).items())]
    return tables.markdown(["fault", "expected", "what happened", "last tried"], cells, left=4) + "\n"


def read_page() -> dict[str, list[str]]:
    """The rows of the table as it is, by their first cell."""
    lines = TABLE.read_text(encoding="utf-8").splitlines()[2:] if TABLE.exists() else []
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    return {row[0]: row for row in cells}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--files", nargs="+", default=FILES, choices=FILES, metavar="FILE", help="below tests/")
    parser.add_argument("--tests", default="test", help="which of them, as pytest's -k")
    arguments = parser.parse_args()
    rows: dict[str, Row] = {}
    before, began, seed = read_page(), time.monotonic(), arguments.seed
    with tempfile.TemporaryDirectory(prefix="posgap-chaos-") as folder:
        while time.monotonic() - began < arguments.seconds:
            for file in arguments.files:
                for name, parameter, counted, fault in results(file, arguments.tests, seed, Path(folder)):
                    what, expected, unit = TRIED[name]
                    row = rows.setdefault(what.format(parameter), Row(expected, unit=unit))
                    row.tried += int(counted.get(unit, 0)) if unit else 1
                    row.seeds = [*dict.fromkeys([*row.seeds, seed])]
                    if fault:
                        print(f"chaos: seed {seed}: {name}[{parameter}]: {fault}", file=sys.stderr)
                        row.faults.append(f"seed {seed}: {fault.splitlines()[0][:200]}")
                TABLE.write_text(page(rows, before), encoding="utf-8")
            seed += 1
    return int(not rows or any(row.faults for row in rows.values()))


if __name__ == "__main__":
    sys.exit(main())
