"""report: reports how a pipeline run ended, to MLflow and to a webhook, whether it succeeded or failed."""

import logging
import os
from pathlib import Path
from typing import Any

from posgap.foundation.errors import PosgapError
from posgap.foundation.files import write_json
from posgap.foundation.printing import RESULT
from posgap.foundation.redaction import redact_value
from posgap.foundation.retries import RetryPolicy, TransientError, Waits, retrying, within
from posgap.kubeflow.workflow import failed_tasks, is_ended_by_hand, read_workflow
from posgap.options.report import ReportConfig
from posgap.tracking.outcomes import SUCCEEDED, markdown, outcome, stages_of
from posgap.tracking.pipeline_runs import close, parent
from posgap.tracking.runs import PARENT_VARIABLE, WEBHOOK_VARIABLE, Run, pipeline_run
from posgap.verbs.frame import stage

log = logging.getLogger(__name__)
REPORT_FILE, READABLE_FILE = "report.json", "report.md"
RETRY_POLICY = RetryPolicy(tries=3, longest_wait=5)  # for the webhook
SECONDS = 10.0  # to wait for each of its answers


@stage
def report(config: ReportConfig, out: Path, run: Run) -> None:
    """Writes `report.json` and `report.md`, ends the MLflow run that the stages' runs hang below, and posts the report.

    If the webhook or the tracking server does not answer, that is only a warning.
    """
    identity = pipeline_run()
    stages = [step for step in stages_of(identity) if step.run_id != run.id]
    # Stages that one command runs together, such as the demo's, have a parent run that this command ends.
    whole = parent(identity) if run.id and identity and PARENT_VARIABLE not in os.environ else ""
    workflow = read_workflow(identity)
    known: dict[str, Any] = {"reasons": failed_tasks(workflow), "is_ended_by_hand": is_ended_by_hand(workflow)}
    of_run = config.state, config.message, config.registered_name, whole or run.id
    ending = outcome(identity, stages, *of_run, **known)
    result = redact_value(ending)
    write_json(out / REPORT_FILE, result)
    (out / READABLE_FILE).write_text(page := markdown(result), encoding="utf-8")
    tags = {"posgap.outcome": result["status"]}
    if whole:
        close(whole, stages, result["status"] == SUCCEEDED, page, tags)
    run.tags(tags)
    run.artifact(out)
    log.log(RESULT, "the run %s%s", result["status"], "".join(f"; {f['step']}: {f['error']}" for f in result["failed"]))
    url = os.environ.get(WEBHOOK_VARIABLE)
    if url:
        post(url, result)


def post(url: str, result: dict[str, Any]) -> bool:
    """Posts the report as JSON; returns whether that worked. Failures are logged without the address, which may contain
    a secret."""
    import httpx2

    def send() -> None:
        try:
            response = within(SECONDS, lambda: httpx2.post(url, json=result, timeout=SECONDS))
        except (httpx2.TransportError, TimeoutError) as error:
            raise TransientError(type(error).__name__) from None
        if response.status_code in (408, 429) or response.status_code >= 500:
            raise TransientError(f"HTTP {response.status_code}")
        if not response.is_success:
            raise PosgapError(f"HTTP {response.status_code}")

    try:
        retrying(RETRY_POLICY, Waits("the webhook"))(send)
    except (TransientError, PosgapError, httpx2.HTTPError, httpx2.InvalidURL) as error:
        reason = str(error) if isinstance(error, TransientError | PosgapError) else type(error).__name__
        log.warning("the report could not be posted to the webhook: %s", reason)
        return False
    return True
