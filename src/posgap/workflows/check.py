"""`posgap check`: a model or an endpoint is swept and judged in one command, without a base to compare with.

It runs the stage `sweep`, and `grade` where there is a judge, whose outputs are not made again where they are complete,
and applies those rules of the gate that need no reference.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from posgap.data.made import made_examples
from posgap.foundation.errors import PosgapError
from posgap.foundation.files import delete_path, work_folder, write_json
from posgap.foundation.locations import below, with_uris
from posgap.foundation.printing import show
from posgap.gating.ci_reports import CheckResult, Reports, terminal_text
from posgap.gating.config import CheckConfig
from posgap.gating.decision_page import explored_roles, write_decision
from posgap.gating.demands import Policy
from posgap.gating.looks import attempt_number, record_attempt
from posgap.gating.policy import policy_of
from posgap.gating.verdict import Verdict, judge, log_verdict
from posgap.generation.backends import BACKENDS
from posgap.grading.judge import require_judge
from posgap.measurement.config import GradeConfig, Judging, SweepConfig
from posgap.measurement.rescoring import swept_examples
from posgap.measurement.sweeps import read_sweep
from posgap.stages.frame import is_complete
from posgap.stages.grade import grade
from posgap.stages.sweep import sweep
from posgap.storage.cache import fetch_location
from posgap.storage.folders import local_copy, publish_file
from posgap.storage.outputs import RunFolder
from posgap.tasks.reading import write_examples
from posgap.tasks.registry import TASKS
from posgap.tracking.runs import PARENT_VARIABLE, start_run

CHECK_FILE, PAGE_FILE, MADE_FILE = "check.json", "check.html", "examples.jsonl"


def check(config: CheckConfig) -> Verdict:
    """Writes a sweep and its verdict, `check.json` and `check.html`, into `config.out`, and the reports it names.

    Prints the curve and the verdict. Raises `GateRefusal` where the model breaks a rule, and `NotEnoughEvidence` where
    it may.
    """
    places = {"junit": config.junit, "markdown": config.markdown}
    reports = Reports(places, local_copy(config.out))
    with RunFolder(config, "check") as output:
        try:
            checked = _run_check(config, output)
        except PosgapError as error:
            reports.write(CheckResult(config.model, complaint=with_uris(str(error))))
            raise
    reports.write(checked)
    assert checked.verdict
    show(terminal_text(checked), checked.verdict.model_dump(mode="json"))
    if not checked.verdict.passed:
        raise checked.verdict.error(config.model)
    return checked.verdict


def _run_check(config: CheckConfig, output: RunFolder) -> CheckResult:
    for name in (CHECK_FILE, PAGE_FILE):
        delete_path(output.out / name)  # that of an earlier check, which says nothing of this one
    policy = policy_of(config.model_copy(update={"policy": config.policy and fetch_location(config.policy)}))
    rests_on = {"sweep": below(config.out, "sweep")}
    with start_run("check", {}, output.out) as run:
        if run.id:
            os.environ[PARENT_VARIABLE] = run.id
        with _asked_anew(config):
            of_sweep = _sweep_config(config, policy, output, rests_on["sweep"])
            of_grade = _grade_config(config, of_sweep, below(config.out, "graded")) if config.judge else None
            if of_grade and (of_sweep.force or not is_complete("sweep", of_sweep)):
                require_judge(of_grade)  # before the sweep, which may take hours
            swept = fetch_location(sweep(of_sweep))
            if of_grade:
                rests_on["graded"] = of_grade.out
                swept = fetch_location(grade(of_grade))
        figures, examples = read_sweep(swept), swept_examples(swept, of_sweep.examples)
        verdict = judge(swept, None, None, policy, examples, look=attempt_number(figures))
        record_attempt(verdict, figures)
        file = output.out / CHECK_FILE
        write_json(file, verdict.model_dump(mode="json"))
        log_verdict(verdict, figures, run)
        run.artifact(file)
        explored = explored_roles({"candidate": swept})
        write_decision(verdict, {"candidate": figures}, output.out / PAGE_FILE, explored)
        names = [name for name in (CHECK_FILE, PAGE_FILE, MADE_FILE) if (output.out / name).exists()]
        output.write_manifest(names, rests_on)
        for name in names:
            publish_file(output.out / name, below(config.out, name), force=True)
    return CheckResult(config.model, verdict, figures)


def _sweep_config(config: CheckConfig, policy: Policy, output: RunFolder, folder: Path | str) -> SweepConfig:
    shared = {name: getattr(config, name) for name in SweepConfig.model_fields if name in CheckConfig.model_fields}
    examples = config.examples
    if examples is None:
        examples = output.out / MADE_FILE
        write_examples(examples, made_examples(TASKS[config.task], config.n_examples, config.n_docs, config.seed))
    own = {"out": folder, "examples": examples, "max_unanswered": policy.max_unanswered}
    return SweepConfig(**shared | own | {"force": config.force or _is_fresh(config)})


def _grade_config(config: CheckConfig, of_sweep: SweepConfig, folder: Path | str) -> GradeConfig:
    # Of how endpoints are asked: what a header or a field of the requests says is for the one that is swept.
    shared = {"max_thinking_tokens", "dtype", "batch_tokens", "concurrency", "timeout", "seed"}
    shared |= {"judge", *Judging.model_fields}
    own = {"sweep": of_sweep.out, "examples": of_sweep.examples, "out": folder, "force": of_sweep.force}
    given = {name: getattr(config, name) for name in shared}
    return GradeConfig(**given | own | {"max_unanswered": of_sweep.max_unanswered})


def _is_fresh(config: CheckConfig) -> bool:
    """Whether nothing that an endpoint answered before is used: its model can change behind its name."""
    in_ci = os.environ.get("CI", "").lower() not in ("", "0", "false")
    return not BACKENDS[config.backend].local and (config.force or in_ci)


@contextmanager
def _asked_anew(config: CheckConfig) -> Iterator[None]:
    """Within the block a fresh check finds no response of an earlier one, and whoever stops it is told so."""
    if not _is_fresh(config):
        yield
        return
    for name in ("sweep", "graded"):
        delete_path(work_folder(local_copy(below(config.out, name))))
    try:
        yield
    except (PosgapError, KeyboardInterrupt) as stop:
        stop.add_note("with --force, or where CI is set, a check asks everything again; without both it goes on")
        raise
