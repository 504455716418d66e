"""validate: checks examples with Great Expectations, before any GPU time is spent on them."""

import logging
from pathlib import Path

from posgap.config import ValidateConfig
from posgap.data.expectations import check, describe, expectations
from posgap.errors import Rejected
from posgap.files import write_json
from posgap.stage import stage
from posgap.tasks.content import contents
from posgap.tasks.examples import EXAMPLES_FILE, read_examples, write_examples
from posgap.tasks.setup import builder_of
from posgap.tracking.runs import Run

log = logging.getLogger(__name__)


@stage
def validate(config: ValidateConfig, out: Path, run: Run) -> None:
    """Writes the examples, `validation.json` and the data docs.

    Raises `Rejected`, which names every failed expectation and its first rows, if any example fails.
    """
    examples = read_examples(config.examples)[: config.limit or None]
    build = builder_of(config)
    excluded = set(contents(read_examples(config.exclude))) if config.exclude else set()
    table = describe(examples, build, config.n_docs, excluded)
    # The longest prompt is what the model's context leaves beside the response.
    suite = expectations(config.n_docs, build.context - build.max_new_tokens, build.task.n_gold)
    report = {"examples": len(table)} | check(table, suite, out / "data_docs")
    write_json(out / "validation.json", report)
    run.artifact(out)
    run.metrics({"examples": len(table), "failed_expectations": len(report["failures"])})
    if report["failures"]:
        raise Rejected(
            f"{config.examples}: {'; '.join(report['failures'])}. Report: {config.out}.rejected/data_docs/index.html"
        )
    write_examples(out / EXAMPLES_FILE, examples)
    log.info("%d examples pass %d expectations", len(table), report["evaluated"])
