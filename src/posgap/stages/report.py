"""report: reports how a pipeline run ended, to MLflow and to a webhook, whether it succeeded or failed."""

import logging
import os
import time
from pathlib import Path
from typing import Any

from posgap.config import ReportConfig
from posgap.files import write_json
from posgap.locations import Location
from posgap.redaction import redacted_value
from posgap.stage import stage
from posgap.tracking.outcomes import markdown, outcome, stages_of
from posgap.tracking.pipeline_runs import adopt
from posgap.tracking.runs import Run, pipeline_run

log = logging.getLogger(__name__)
REPORT_FILE, READABLE_FILE = "report.json", "report.md"
TRIES, SECONDS = 3, 10.0  # attempts to post, and seconds to wait for each answer


def report(config: ReportConfig) -> Location:
    """Writes `report.json` and `report.md`, makes this MLflow run the parent of the stages', and posts the report.

    If the webhook or the tracking server does not answer, that is only a warning.
    """
    return _report(config.model_copy(update={"force": True}))


@stage
def _report(config: ReportConfig, out: Path, run: Run) -> None:
    identity = config.pipeline_run or pipeline_run()
    stages = [step for step in stages_of(identity) if step.run_id != run.id]
    result = redacted_value(outcome(identity, stages, config.state, config.message, config.registered_name, run))
    write_json(out / REPORT_FILE, result)
    (out / READABLE_FILE).write_text(markdown(result), encoding="utf-8")
    if run.id:
        adopt(stages, run.id)
    run.tags({"posgap.outcome": result["status"], "mlflow.runName": f"pipeline {identity[:8]}".strip()})
    run.artifact(out)
    log.info("the run %s%s", result["status"], "".join(f"; {f['step']}: {f['error']}" for f in result["failed"]))
    if url := config.webhook_url or os.environ.get("POSGAP_WEBHOOK_URL", ""):
        post(url, result)


def post(url: str, result: dict[str, Any]) -> bool:
    """Posts the report as JSON; returns whether that worked. Failures are logged without the address, which may contain
    a secret."""
    import httpx2

    reason = ""
    for attempt in range(TRIES):
        time.sleep(attempt)
        try:
            response = httpx2.post(url, json=result, timeout=SECONDS)
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            reason = type(error).__name__
            continue
        if response.is_success:
            return True
        reason = f"HTTP {response.status_code}"
        if response.status_code < 500:
            break
    log.warning("the report could not be posted to the webhook: %s", reason)
    return False
