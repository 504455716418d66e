"""The checks that examples must pass, run by Great Expectations."""

import logging
import os
from collections.abc import Collection
from pathlib import Path

import pandas as pd

from posgap.errors import PosgapError
from posgap.tasks.content import content
from posgap.tasks.examples import AnyExample, KVExample, RankedExample
from posgap.tasks.metrics import holds_answer, normalize, sub_exact_match
from posgap.tasks.prompts import PromptBuilder

# Great Expectations logs its set-up at INFO, some loggers at a level of their own; warnings still show.
logging.getLogger("great_expectations").propagate = False
ROWS_NAMED = 5  # in the message about a failed expectation


def describe(
    examples: list[AnyExample], build: PromptBuilder, n_docs: int, excluded: Collection[str] = ()
) -> pd.DataFrame:
    """A table with one row per example and scalars in its columns, since Great Expectations cannot check lists."""
    placement = build.task.placements(n_docs)[0]
    return pd.DataFrame(
        {
            "id": example.id,
            "question": example.question,
            "n_answers": len(example.answers),
            "shortest_answer": min((len(a.strip()) for a in example.answers), default=0),
            "n_gold": len(example.gold),
            "n_docs": len(example.gold) + len(example.distractors),
            "gold_holds_answer": _gold_holds_answer(example),
            "gold_among_distractors": _gold_among_distractors(example, bool(build.task.slot_names)),
            "key_occurrences": sum(k == example.key for k, _ in example.records)
            if isinstance(example, KVExample)
            else 1,
            "prompt_tokens": _prompt_tokens(example, build, placement),
            "in_excluded": bool(excluded) and content(example) in excluded,
        }
        for example in examples
    )


def answering_distractors(examples: list[AnyExample]) -> dict[str, int]:
    """How many documents that are not gold hold an answer, and in how many examples; answers of yes or no, and the
    records of key-value examples, tell nothing."""
    numbers = [
        sum(holds_answer(document, example.answers) for document in example.distractors)
        for example in examples
        if not isinstance(example, KVExample) and not _yes_or_no(example)
    ]
    return {
        "examples_with_answering_distractors": sum(number > 0 for number in numbers),
        "answering_distractors": sum(numbers),
    }


def _yes_or_no(example: AnyExample) -> bool:
    return any(normalize(answer) in ("yes", "no") for answer in example.answers)


def _gold_holds_answer(example: AnyExample) -> bool:
    if isinstance(example, RankedExample) and example.relevance != "answer":
        return True  # somebody judged that these passages answer, in whatever words
    if _yes_or_no(example):
        return True  # a judgement on the documents, which no document contains word for word
    return sub_exact_match(" ".join(f"{d.title} {d.text}" for d in example.gold), example.answers)


def _gold_among_distractors(example: AnyExample, without_titles: bool) -> int:
    """How many distractors are gold documents; of items to choose from, the texts alone are shown."""
    if not without_titles:
        return sum(document in example.gold for document in example.distractors)
    gold = {" ".join(document.text.split()) for document in example.gold}
    return sum(" ".join(document.text.split()) in gold for document in example.distractors)


def _prompt_tokens(example: AnyExample, build: PromptBuilder, placement) -> int:
    try:
        return len(build.token_ids(build.text(example, placement)))
    except PosgapError:
        return 0  # no prompt can be made; the columns that count documents say why


def expectations(
    n_docs: int, longest_prompt: int, n_gold: int = 1, all_items: bool = False, of_any_number: bool = False
) -> list:
    """The expectations, in the order in which failures are reported; `all_items` says that a prompt is to have all
    items of its example. Examples have `n_gold` gold documents, or any number."""
    import great_expectations.expectations as gxe

    return [
        gxe.ExpectColumnValuesToMatchRegex(column="question", regex=r"\S"),
        gxe.ExpectColumnValuesToBeBetween(column="n_answers", min_value=1),
        gxe.ExpectColumnValuesToBeBetween(column="shortest_answer", min_value=1),
        gxe.ExpectColumnValuesToBeInSet(column="key_occurrences", value_set=[1]),
        gxe.ExpectColumnValuesToBeBetween(column="n_gold", min_value=1)
        if of_any_number
        else gxe.ExpectColumnValuesToBeInSet(column="n_gold", value_set=[n_gold]),
        gxe.ExpectColumnValuesToBeInSet(column="gold_holds_answer", value_set=[True]),
        gxe.ExpectColumnValuesToBeInSet(column="gold_among_distractors", value_set=[0]),
        gxe.ExpectColumnValuesToBeBetween(column="n_docs", min_value=n_docs, max_value=n_docs if all_items else None),
        gxe.ExpectColumnValuesToBeBetween(column="prompt_tokens", max_value=longest_prompt),
        gxe.ExpectColumnValuesToBeInSet(column="in_excluded", value_set=[False]),
    ]


def check(table: pd.DataFrame, suite: list, docs: Path) -> dict:
    """Runs the suite over the table, writes the data docs into `docs`, and returns the result as plain JSON.

    `failures` has one line per failed expectation, with the ids of the first rows that fail it.
    """
    os.environ.setdefault("GX_ANALYTICS_ENABLED", "false")
    import great_expectations as gx
    from great_expectations.data_context.types.base import ProgressBarsConfig

    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = ProgressBarsConfig(globally=False)
    store = {"class_name": "TupleFilesystemStoreBackend", "base_directory": str(docs.absolute())}
    index = {"class_name": "DefaultSiteIndexBuilder"}
    context.add_data_docs_site(
        "local", {"class_name": "SiteBuilder", "store_backend": store, "site_index_builder": index}
    )
    context.delete_data_docs_site("local_site")
    batch = (
        context.data_sources.add_pandas("pandas")
        .add_dataframe_asset("examples")
        .add_batch_definition_whole_dataframe("all")
    )
    expectation_suite = context.suites.add(gx.ExpectationSuite(name="examples", expectations=suite))
    definition = context.validation_definitions.add(
        gx.ValidationDefinition(name="examples", data=batch, suite=expectation_suite)
    )
    checkpoint = context.checkpoints.add(
        gx.Checkpoint(
            name="examples",
            validation_definitions=[definition],
            result_format={"result_format": "COMPLETE", "unexpected_index_column_names": ["id"]},
        )
    )
    outcome = checkpoint.run(batch_parameters={"dataframe": table})
    context.build_data_docs()
    results = [r for validation in outcome.run_results.values() for r in validation.results]
    return {
        "success": bool(outcome.success),
        "evaluated": len(results),
        "failures": [_failure(r, table) for r in results if not r.success],
        "results": [r.to_json_dict() for r in results],
    }


def _failure(result, table: pd.DataFrame) -> str:
    config, details = result.expectation_config, result.result
    rule = config.type.removeprefix("expect_column_values_to_").replace("_", " ")
    limits = {k: v for k, v in config.kwargs.items() if k not in ("column", "batch_id") and v is not None}
    rows = details.get("unexpected_index_list") or []
    named = ", ".join(f"{row['id']} ({row[config.kwargs['column']]})" for row in rows[:ROWS_NAMED])
    more = f" and {len(rows) - ROWS_NAMED} more" if len(rows) > ROWS_NAMED else ""
    stated = f" {limits}" if limits else ""
    return f"`{config.kwargs['column']}` must {rule}{stated}, but fails in {named or 'every row'}{more}"
