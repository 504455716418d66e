"""`posgap check`: sweeps and judges a model or an endpoint in one command, without a base to compare with.

It runs the stage `sweep`, which reuses a complete output, and applies the gate's rules that need no reference.
"""

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from posgap.data.import_report import ImportReport
from posgap.data.made import made_examples
from posgap.data.reading import read_examples, write_examples
from posgap.foundation.errors import PosgapError
from posgap.foundation.files import delete_path, work_folder, write_json
from posgap.foundation.locations import Location, below, page_address
from posgap.foundation.printing import colour_word, join_lines, printable, show
from posgap.foundation.redaction import redact
from posgap.gating.copies import private_sweeps
from posgap.gating.decision_page import decision_page, explored_roles
from posgap.gating.demands import Policy
from posgap.gating.looks import attempt_number, record_attempt
from posgap.gating.verdict import Verdict, against, judge, log_verdict, next_number
from posgap.generation.backends import BACKENDS
from posgap.measurement.report import save_page
from posgap.measurement.rescoring import swept_examples
from posgap.measurement.sweeps import Sweep, read_sweep
from posgap.measurement.text_curve import sweep_text
from posgap.options.check import CheckConfig
from posgap.options.sweep import SweepConfig
from posgap.storage.cache import fetch_location
from posgap.storage.folders import local_copy, publish_file
from posgap.storage.outputs import RunFolder
from posgap.tasks.registry import TASKS
from posgap.tracking.runs import PARENT_VARIABLE, start_run
from posgap.verbs.demanded import policy_of
from posgap.verbs.sweep import sweep_model

log = logging.getLogger(__name__)
CHECK_FILE, PAGE_FILE, MADE_FILE = "check.json", "check.html", "examples.jsonl"


def check(config: CheckConfig) -> Verdict:
    """Writes a sweep and its verdict, `check.json` and `check.html`, into `config.out`.

    Prints the curve and the verdict. Raises `GateRefusal` if the model breaks a rule, and `NotEnoughEvidence` if it
    may.
    """
    with RunFolder(config, "check") as output:
        verdict, swept = _run_check(config, output)
    words = f"{terminal_text(config.model, verdict, swept)}\npage: {page_address(config.out, PAGE_FILE)}"
    show(words, verdict.model_dump(mode="json"))
    if not verdict.passed:
        raise verdict.error(config.model)
    return verdict


def terminal_text(model: str, verdict: Verdict, sweep: Sweep) -> str:
    """Returns what a check prints in a terminal: the curve, the figures, and a line for each rule."""
    lines = [""]
    for ruling in verdict.rules:
        lines.append(f"{colour_word(f'{ruling.outcome:<7}', sys.stdout)}{against(ruling)}; {ruling.sentence}")
    if verdict.wanting:
        lines.append(verdict.wanting)
    if verdict.passed:  # a refusal ends the command with a line that gives the reason
        lines.append(f"{colour_word('admitted', sys.stdout)}: {printable(redact(model))}")
    return "\n".join([sweep_text(sweep), join_lines(lines)])


def _run_check(config: CheckConfig, output: RunFolder) -> tuple[Verdict, Sweep]:
    for name in (CHECK_FILE, PAGE_FILE):
        delete_path(output.out / name)  # an earlier check's result does not apply to this one
    policy = policy_of(config.model_copy(update={"policy": config.policy and fetch_location(config.policy)}))
    with start_run("check", {}, output.out) as run:
        if run.id:
            os.environ[PARENT_VARIABLE] = run.id
        with _asked_anew(config):
            place = below(config.out, "sweep")
            of_sweep = _sweep_config(config, policy, output, place)
            swept = fetch_location(sweep_model(of_sweep))
            verdict, figures = _judge_sweep(swept, policy, of_sweep.examples, 1)
            # While more examples may decide, and the policy gives them, another look is taken.
            available = (
                len(read_examples(fetch_location(of_sweep.examples), ImportReport())) if policy.most_examples else 0
            )
            for look in count(2):
                number = next_number(verdict, figures, min(available, config.limit or available))
                if not number:
                    break
                log.info("%s; look %d takes %s examples", verdict.error(config.model), look, f"{number:,}")
                place = below(config.out, f"sweep-{look}")
                of_sweep = of_sweep.model_copy(update={"out": place, "limit": number})
                if _is_fresh(config):
                    delete_path(work_folder(local_copy(place)))
                swept = fetch_location(sweep_model(of_sweep, earlier=Path(swept)))
                verdict, figures = _judge_sweep(swept, policy, of_sweep.examples, look)
        file = output.out / CHECK_FILE
        write_json(file, verdict.model_dump(mode="json"))
        log_verdict(verdict, figures, run)
        run.artifact(file)
        explored = explored_roles({"candidate": swept})
        save_page(decision_page(verdict, {"candidate": figures}, explored), output.out / PAGE_FILE)
        names = [name for name in (CHECK_FILE, PAGE_FILE, MADE_FILE) if (output.out / name).exists()]
        output.write_manifest(names, {"sweep": place})
        for name in names:
            publish_file(output.out / name, below(config.out, name), force=True)
    return verdict, figures


def _judge_sweep(swept: Path, policy: Policy, given: Location, look: int) -> tuple[Verdict, Sweep]:
    """The verdict on a sweep, at this look of a check, or a later one if more were counted; and its figures."""
    with private_sweeps({"candidate": swept}) as copies:
        copy = copies["candidate"]
        figures = read_sweep(copy)
        examples = swept_examples(copy, given)
        number = attempt_number(figures)
        if policy.most_examples:  # this check's next look has less of the error, even if others are not counted
            number = max(number or 1, look)
        verdict = judge(copy, None, None, policy, examples=examples, look=number)
    record_attempt(verdict, figures)
    return verdict, figures


def _sweep_config(config: CheckConfig, policy: Policy, output: RunFolder, folder: Path | str) -> SweepConfig:
    shared = {name: getattr(config, name) for name in SweepConfig.model_fields if name in CheckConfig.model_fields}
    examples = config.examples
    if examples is None:
        examples = output.out / MADE_FILE
        number = max(config.n_examples, policy.most_examples)
        write_examples(examples, made_examples(TASKS[config.task], number, config.n_docs, config.seed))
    own = {"out": folder, "examples": examples, "max_unanswered": policy.max_unanswered}
    if policy.most_examples:
        own["limit"] = min(config.limit or config.n_examples, config.n_examples)
    return SweepConfig(**shared | own | {"force": config.force or _is_fresh(config)})


def _is_fresh(config: CheckConfig) -> bool:
    """Whether nothing that an endpoint answered before is used: its model can change behind its name."""
    in_ci = os.environ.get("CI", "").lower() not in ("", "0", "false")
    return not BACKENDS[config.backend].local and (config.force or in_ci)


@contextmanager
def _asked_anew(config: CheckConfig) -> Iterator[None]:
    """Within the block a fresh check finds no response of an earlier one; if it is stopped, the message says so."""
    if not _is_fresh(config):
        yield
        return
    delete_path(work_folder(local_copy(below(config.out, "sweep"))))
    try:
        yield
    except (PosgapError, KeyboardInterrupt) as stop:
        stop.add_note("with --force, or if CI is set, a check starts again; without both it resumes")
        raise
