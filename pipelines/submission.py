"""Runs on a KFP server: sent once, and waited for if asked."""

import logging
import secrets
import time
from datetime import UTC, datetime

import kfp_server_api

from posgap.config import PipelineOnCluster, PipelineSubmitConfig
from posgap.errors import RunCanceled, RunFailed, RunUnfinished, Stopped
from posgap.pipelines.arguments import arguments
from posgap.pipelines.client import Client, ensure_experiment
from posgap.pipelines.compilation import Compiled, load
from posgap.pipelines.steps import task_names
from posgap.pipelines.transport import Unanswered, once

log = logging.getLogger(__name__)
ENDED = ("SUCCEEDED", "FAILED", "CANCELED", "SKIPPED")


def submit(config: PipelineSubmitConfig) -> None:
    """Starts a run and prints its id and address; with `wait`, raises what its end or the time limit says."""
    compiled, given = to_run(config)
    client = Client(config)
    experiment = ensure_experiment(client, config)
    # The suffix keeps two submissions within a second apart, for people and for `once`.
    name = config.name or f"{compiled.name} {datetime.now(UTC):%Y-%m-%d %H:%M:%S} {secrets.token_hex(2)}"
    with compiled.package() as package:
        run = once(
            lambda: client.run_pipeline(
                experiment,
                name,
                pipeline_package_path=package,
                params=given,
                service_account=config.service_account or None,
            ),
            lambda: {run.run_id: run for run in client.find_runs(experiment, display_name=name)},
            config.retries,
        )
    print(f"run {run.run_id}\n{client.run_url(run.run_id)}", flush=True)
    if config.wait:
        try:
            _wait(client, run.run_id, compiled, config)
        except (KeyboardInterrupt, Stopped) as stop:
            # The same command again would start another run.
            stop.add_note(f"run {run.run_id} goes on: {client.run_url(run.run_id)}")
            raise


def to_run(config: PipelineOnCluster) -> tuple[Compiled, dict]:
    """The compiled pipeline as it is to run, and the arguments that it accepts."""
    compiled = load(config.file)
    given = arguments(config, compiled.parameters)
    return (compiled.uncached() if config.no_cache else compiled), given


def _wait(client: Client, run_id: str, compiled: Compiled, config: PipelineSubmitConfig) -> None:
    """Looks until the run has ended. KFP's own wait takes a cancelled run for one under way."""
    until, state = time.monotonic() + config.timeout, ""
    while True:
        try:
            run = client.get_run(run_id)
        except Unanswered as error:
            # The run goes on without us, and hours may depend on it.
            log.warning("%s; looking again", error)
        else:
            if run.state != state:
                state = run.state
                log.info("run %s: %s", run_id, state)
            if state in ENDED:
                return _report(run, compiled, client.run_url(run_id))
        left = until - time.monotonic()
        if left <= 0:
            raise RunUnfinished(
                f"run {run_id} has not ended after {config.timeout:g} s (last seen {state or 'never'}); it goes on: "
                f"{client.run_url(run_id)}"
            )
        time.sleep(min(config.interval, left))


def _report(run: kfp_server_api.V2beta1Run, compiled: Compiled, url: str) -> None:
    if run.state == "SUCCEEDED":
        return
    if run.state != "FAILED":
        raise RunCanceled(f"run {run.run_id} was {run.state.lower()}: {url}")
    steps = failed_steps(run, compiled)
    where = f" in {' and '.join(steps)}" if steps else ""
    why = f": {' '.join(run.error.message.split())[:200]}" if run.error and run.error.message else ""
    raise RunFailed(f"run {run.run_id} failed{where}{why}: see {url}")


def failed_steps(run: kfp_server_api.V2beta1Run, compiled: Compiled) -> list[str]:
    """Names of the steps that failed, the first to end first.

    KFP reports every node of the workflow: a step's driver beside it, and the groups and the root above,
    which fail with what is in them.
    """
    steps = task_names(compiled)
    tasks = (run.run_details.task_details or []) if run.run_details else []
    failed = [t for t in tasks if t.state == "FAILED"]
    failed.sort(key=lambda task: task.end_time or datetime.max.replace(tzinfo=UTC))
    names = [steps.get((task.display_name or "").removesuffix("-driver")) for task in failed]
    return list(dict.fromkeys(name for name in names if name))
