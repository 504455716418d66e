"""pipeline submit: a run on a KFP server."""

import logging
import secrets
from datetime import UTC, datetime

from posgap.foundation.errors import PosgapError
from posgap.foundation.printing import show
from posgap.options.pipeline_submit import PipelineSubmitConfig
from posgap.pipelines.connection import connect
from posgap.pipelines.nodes import find_nodes, unplaceable
from posgap.pipelines.resources import resources
from posgap.pipelines.steps import tree
from posgap.pipelines.submission import to_run, wait_for_end
from posgap.pipelines.transport import once

log = logging.getLogger(__name__)


def pipeline_submit(config: PipelineSubmitConfig) -> None:
    """Starts a run and prints its id and address; with `wait`, raises an error if it fails or takes too long."""
    if config.version and config.no_cache:
        raise PosgapError("--version: --no-cache cannot change an uploaded version; leave one out")
    compiled, values = to_run(config)
    compiled = compiled.without_cache() if config.no_cache else compiled
    client = connect(config)
    nodes = find_nodes()
    for line in unplaceable(map(resources, tree(compiled, values).steps()), nodes) if nodes else ():
        log.warning("%s", line)
    experiment = client.ensure_experiment(config)
    # The suffix distinguishes two submissions within the same second, for people and for `once`.
    name = config.name or f"{compiled.name} {datetime.now(UTC):%Y-%m-%d %H:%M:%S} {secrets.token_hex(2)}"
    with compiled.source() as source:
        run = once(
            lambda: client.run_pipeline(
                experiment,
                name,
                params=values,
                pipeline_root=compiled.root or None,
                service_account=config.service_account or None,
                **source,
            ),
            lambda: {run.run_id: run for run in client.find_runs(experiment, display_name=name)},
        )
    url = client.run_url(run.run_id)
    show(f"run {run.run_id}\n{url}", {"run": run.run_id, "url": url, "state": None})
    if config.wait:
        try:
            wait_for_end(client, run.run_id, compiled, values, config.timeout)
        except KeyboardInterrupt as stop:
            # The same command would start another run, so this says how to find the running one.
            stop.add_note(f"run {run.run_id} goes on: {client.run_url(run.run_id)}")
            raise
