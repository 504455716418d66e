"""Starts runs on a KFP server, each exactly once, and waits for their end if asked to."""

import logging
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import kfp_server_api

from posgap.foundation.errors import RunCancellation, RunFailure, RunTimeout
from posgap.foundation.printing import set_result
from posgap.kubeflow.workflow import is_ended_by_hand
from posgap.options.pipelines import PipelineOnCluster
from posgap.pipelines.arguments import arguments, declared_parameters
from posgap.pipelines.checks import Check
from posgap.pipelines.compilation import CompiledYaml, load
from posgap.pipelines.progress import Progress
from posgap.pipelines.steps import task_names
from posgap.pipelines.transport import NoAnswer, ServerRefusal, address
from posgap.pipelines.uploading import fetch_uploaded

if TYPE_CHECKING:
    from posgap.pipelines.client import Client

log = logging.getLogger(__name__)
POLL_SECONDS = 10.0  # between two looks at a run
ENDED = ("SUCCEEDED", "FAILED", "CANCELED", "SKIPPED")


def to_run(config: PipelineOnCluster) -> tuple[CompiledYaml, dict]:
    """The compiled pipeline to run, and its complete arguments.

    Errors of the server's address, or of the form's arguments, are reported before kfp is imported and the pipeline
    compiled, which takes seconds.
    """
    address(config)
    if not (config.version or config.file):
        arguments(config, declared_parameters(config.pipeline))
    compiled = fetch_uploaded(config) if config.version else load(config.file, config.pipeline)
    values = arguments(config, compiled.parameters)
    Check(compiled, values).log_warnings()
    return compiled, values


def wait_for_end(
    client: "Client", run_id: str, compiled: CompiledYaml, values: Mapping[str, Any], timeout: float
) -> None:
    """Polls until the run has ended, and logs what its steps do and why one waits. KFP's own wait would treat a
    cancelled run as one that is still running."""
    until = time.monotonic() + timeout
    state = ""
    progress = Progress(compiled, values)
    while True:
        try:
            run = client.get_run(run_id)
        except NoAnswer as error:
            # The run continues meanwhile, and may represent hours of work.
            log.warning("%s; trying again", error)
        else:
            # While Argo's controller is away, KFP may tell no state.
            if run.state and run.state != state:
                state = run.state
                log.info("run %s: %s", run_id, state)
            workflow = _find_workflow(client, run_id)
            for line in progress.news(workflow):
                log.info("%s", line)
            if state in ENDED:
                # KFP can call a run failed that a person ended.
                ended = "CANCELED" if state == "FAILED" and is_ended_by_hand(workflow) else state
                return _report_end(run, ended, compiled, progress.failures(workflow), client.run_url(run_id))
        left = until - time.monotonic()
        if left <= 0:
            seen = f"last seen {state}" if state else "the server never told its state"
            url = client.run_url(run_id)
            raise RunTimeout(f"run {run_id} has not ended after {timeout:g} s ({seen}); it goes on: {url}")
        time.sleep(min(POLL_SECONDS, left))


def _find_workflow(client: "Client", run_id: str) -> Mapping[str, Any]:
    """Returns Argo's record of a run; an empty one if the server does not give it."""
    try:
        return client.find_workflow(run_id)
    except (NoAnswer, ServerRefusal, ValueError) as error:
        log.debug("steps of run %s: %s", run_id, error)
        return {}


def _report_end(
    run: kfp_server_api.V2beta1Run, state: str, compiled: CompiledYaml, failures: Mapping[str, str], url: str
) -> None:
    set_result({"run": run.run_id, "url": url, "state": state})
    if state == "SUCCEEDED":
        return
    if state != "FAILED":
        raise RunCancellation(f"run {run.run_id} was {state.lower()}: {url}")
    steps = list(failures) or failed_steps(run, compiled)
    where = f" in {' and '.join(steps)}" if steps else ""
    said = " ".join((run.error.message or "").split())[:200] if run.error else ""
    why = f": {'; '.join(failures.values()) or said}" if failures or said else ""
    raise RunFailure(f"run {run.run_id} failed{where}{why}: see {url}")


def failed_steps(run: kfp_server_api.V2beta1Run, compiled: CompiledYaml) -> list[str]:
    """Returns the names of the failed steps, in the order in which they ended.

    KFP reports every node of the workflow: also a step's driver, and the groups and the root, which fail along with
    the steps in them.
    """
    steps = task_names(compiled)
    tasks = (run.run_details.task_details or []) if run.run_details else []
    failed = [t for t in tasks if t.state == "FAILED"]
    failed.sort(key=lambda task: task.end_time or datetime.max.replace(tzinfo=UTC))
    names = [steps.get((task.display_name or "").removesuffix("-driver")) for task in failed]
    return list(dict.fromkeys(filter(None, names)))
