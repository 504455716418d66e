"""validate: checks examples with Great Expectations, before any GPU time is spent on them."""

import logging
from itertools import chain
from pathlib import Path
from typing import Any

from posgap.data.expectations import answering_distractors, example_table, expectations, run_expectations
from posgap.data.reading import EXAMPLES_FILE, numbered_examples, read_examples, write_examples
from posgap.foundation.errors import Rejection
from posgap.foundation.extras import import_extra
from posgap.foundation.files import write_json
from posgap.foundation.printing import RESULT
from posgap.generation.setup import builder_of
from posgap.measurement.report import render_page, save_page
from posgap.options.validate import ValidateConfig
from posgap.tasks.content import content_keys
from posgap.tasks.examples import AnyExample, Example
from posgap.tasks.special_tokens import count_special
from posgap.tracking.runs import Run
from posgap.verbs.frame import stage

log = logging.getLogger(__name__)
PAGE = "validation.html"
SHOWN = 100  # rows of each failed expectation on the page


@stage
def validate(config: ValidateConfig, out: Path, run: Run) -> None:
    """Writes the examples, `validation.json`, and the page `validation.html`.

    Raises `Rejection`, which names every failed expectation and its first rows, if any example fails.
    """
    import_extra("great_expectations")
    numbered = numbered_examples(config.examples)[: config.limit or None]
    lines = [line for line, _ in numbered]
    examples = [example for _, example in numbered]
    builder = builder_of(config.model, config.wording(), config.limits())
    excluded = set(content_keys(read_examples(config.exclude))) if config.exclude else set()
    table = example_table(examples, builder, config.n_docs, excluded, lines)
    # The longest prompt fills the model's context except for the response.
    longest = builder.context - builder.max_new_tokens
    task = builder.task
    of_choices = bool(task.slot_names)
    suite = expectations(config.n_docs, longest, task.n_gold, of_choices, task.slots.of_any_number)
    answering = answering_distractors([] if of_choices else examples, task.metric)
    special = count_special(examples, builder.special)
    report = {"examples": len(table), **answering, **special} | run_expectations(table, suite)
    write_json(out / "validation.json", report)
    rows_failed = len({row["id"] for row in chain.from_iterable(check["rows"] for check in report["checks"])})
    more = {"title": f"Validation of {config.examples}", "report": report, "rows_failed": rows_failed, "shown": SHOWN}
    save_page(render_page("posgap.measurement", "validation.html.j2", [], None, **more), out / PAGE)
    run.artifact(out)
    run.metrics({"examples": len(table), "failed_expectations": len(report["failures"])})
    if report["failures"]:
        failures = "; ".join(report["failures"]) + ("" if of_choices else _remedy(config, report, examples))
        raise Rejection(f"{config.examples}: {failures}. Report: {config.out}.rejected/{PAGE}")
    write_examples(out / EXAMPLES_FILE, examples)
    log.log(RESULT, "%d examples pass %d expectations", len(table), report["evaluated"])
    if special["examples_with_special_tokens"]:
        log.warning(
            "in %d of %d examples passages hold a special token of the model, %d in all: a local model reads it as the "
            "characters that it has, but the server of an endpoint may end the user's turn there",
            special["examples_with_special_tokens"], len(table), special["passages_with_special_tokens"],
        )  # fmt: skip
    among = answering["examples_with_answering_distractors"]
    if among:
        log.warning(
            "in %d of %d examples passages that are not relevant hold an answer, %d in all: a response that copies "
            "one is right by the metric %s; drop them with `data import --format rag --answering drop`, or draw others "
            "with `data make qa` (docs/rag.md)",
            among, len(table), answering["answering_distractors"], task.metric,
        )  # fmt: skip


def _remedy(config: ValidateConfig, report: dict[str, Any], examples: list[AnyExample]) -> str:
    """Returns advice if questions have too few documents, as in the public file with only the gold ones."""
    missing = any(check["column"] == "n_docs" and not check["success"] for check in report["checks"])
    if not missing or not all(isinstance(example, Example) for example in examples):
        return ""
    return (
        f": lower --n-docs, or draw distractors with `posgap data make qa --examples {config.examples} "
        f"--n-docs {config.n_docs} --out FILE`"
    )
