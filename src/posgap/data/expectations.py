"""The checks that examples must pass, run by Great Expectations."""

import logging
import os
from collections.abc import Collection, Sequence
from itertools import count

from posgap.foundation.errors import PosgapError
from posgap.foundation.heavy_types import DataFrame
from posgap.tasks.answering_distractors import count_answering, is_yes_or_no
from posgap.tasks.content import content_key
from posgap.tasks.examples import AnyExample, KVExample, RankedExample
from posgap.tasks.metrics import contains_answer, sub_exact_match
from posgap.tasks.prompts import PromptBuilder

# Great Expectations logs its set-up at INFO, some loggers at a level of their own; warnings still show.
logging.getLogger("great_expectations").propagate = False
ROWS_NAMED = 5  # in the message about a failed expectation


def example_table(
    examples: list[AnyExample],
    builder: PromptBuilder,
    n_docs: int,
    excluded: Collection[str] = (),
    lines: Sequence[int] = (),
) -> DataFrame:
    """A table with one row per example and scalars in its columns, since Great Expectations cannot check lists.

    `lines` are the examples' lines in their file; without them they are counted from 1.
    """
    import pandas as pd

    placement = builder.task.choose_placements(n_docs)[0]
    rows = []
    for line, example in zip(lines or count(1), examples):
        builder.task.require_fit(example)
        row = {
            "id": example.id,
            "line": line,
            "question": example.question,
            "n_answers": len(example.answers),
            "shortest_answer": min(map(len, map(str.strip, example.answers)), default=0),
            "n_gold": len(example.gold),
            "n_docs": len(example.gold) + len(example.distractors),
            "gold_holds_answer": _gold_holds_answer(example),
            "gold_among_distractors": _gold_among_distractors(example, bool(builder.task.slot_names)),
            "key_occurrences": len(example.gold) if isinstance(example, KVExample) else 1,
            "prompt_tokens": _prompt_tokens(example, builder, placement),
            "in_excluded": bool(excluded) and content_key(example) in excluded,
        }
        rows.append(row)
    return pd.DataFrame(rows)


def answering_distractors(examples: list[AnyExample], metric: str) -> dict[str, int]:
    """Counts the documents that are not gold and hold an answer by this metric, and the examples with any."""
    in_examples, in_all = count_answering(examples, metric)
    return {"examples_with_answering_distractors": in_examples, "answering_distractors": in_all}


def _gold_holds_answer(example: AnyExample) -> bool:
    if isinstance(example, RankedExample) and example.relevance != "answer":
        return True  # a judge found that these passages answer, in whatever words
    if is_yes_or_no(example):
        return True  # a judgement on the documents, which no document contains word for word
    documents = " ".join(f"{document.title} {document.text}" for document in example.gold)
    return contains_answer(documents, example.answers) or sub_exact_match(documents, example.answers)


def _gold_among_distractors(example: AnyExample, without_titles: bool) -> int:
    """Counts the distractors that are gold documents; for items to choose from, it shows only the texts."""
    gold = [document.text.split() if without_titles else document for document in example.gold]
    return sum((document.text.split() if without_titles else document) in gold for document in example.distractors)


def _prompt_tokens(example: AnyExample, builder: PromptBuilder, placement) -> int:
    try:
        return len(builder.token_ids(builder.text(example, placement)))
    except PosgapError:
        return 0  # no prompt can be made; the columns that count documents say why


def expectations(
    n_docs: int, longest_prompt: int, n_gold: int = 1, all_items: bool = False, of_any_number: bool = False
) -> list:
    """Returns the expectations, in the order of reporting failures; `all_items` says that a prompt must have all items
    of its example. Examples have `n_gold` gold documents, or any number."""
    import great_expectations.expectations as gxe

    between = gxe.ExpectColumnValuesToBeBetween
    among = gxe.ExpectColumnValuesToBeInSet
    golds = {"min_value": 1} if of_any_number else {"value_set": [n_gold]}
    return [
        gxe.ExpectColumnValuesToMatchRegex(column="question", regex=r"\S", description="the question is not blank"),
        between(column="n_answers", min_value=1, description="there is an answer"),
        between(column="shortest_answer", min_value=1, description="no answer is blank (characters of the shortest)"),
        among(column="key_occurrences", value_set=[1], description="the key names one record"),
        (between if of_any_number else among)(column="n_gold", description="number of gold documents", **golds),
        among(column="gold_holds_answer", value_set=[True], description="a gold document holds an answer"),
        among(column="gold_among_distractors", value_set=[0], description="no distractor is a gold document"),
        between(
            column="n_docs",
            min_value=n_docs,
            max_value=n_docs if all_items else None,
            description="documents to fill prompts with",
        ),
        between(column="prompt_tokens", max_value=longest_prompt, description="tokens of the prompt fit the model"),
        among(column="in_excluded", value_set=[False], description="none of the examples to leave out"),
    ]


def run_expectations(table: DataFrame, suite: list) -> dict:
    """Runs the suite over the table and returns the result as plain JSON.

    `failures` has one line per failed expectation, with the ids of the first rows that fail it.
    """
    os.environ.setdefault("GX_ANALYTICS_ENABLED", "false")
    import great_expectations as gx
    from great_expectations.data_context.types.base import ProgressBarsConfig

    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = ProgressBarsConfig(globally=False)
    outcome = context.data_sources.pandas_default.read_dataframe(table).validate(
        gx.ExpectationSuite(name="examples", expectations=suite),
        result_format={"result_format": "COMPLETE", "unexpected_index_column_names": ["id", "line"]},
    )
    checks = [_outcome_of_rule(result, len(table)) for result in outcome.results]
    return {
        "success": bool(outcome.success),
        "evaluated": len(checks),
        "failures": [_describe_failure(check) for check in checks if not check["success"]],
        "checks": checks,
        "results": [result.to_json_dict() for result in outcome.results],
    }


def _outcome_of_rule(result, examples: int) -> dict:
    """Returns the expectation on a column, and the rows that fail it: id, line and value of each."""
    config = result.expectation_config
    details = result.to_json_dict()["result"]
    column = config.kwargs["column"]
    rows = details.get("unexpected_index_list") or []
    limits = {name: value for name, value in config.kwargs.items() if value is not None}
    return {
        "expected": config.description,
        "column": column,
        "required": {name: value for name, value in limits.items() if name not in ("column", "batch_id")},
        "success": bool(result.success),
        "failed": examples if not result.success and not rows else len(rows),
        "rows": [{"id": row["id"], "line": row["line"], "value": row[column]} for row in rows],
    }


def _describe_failure(check: dict) -> str:
    rows = check["rows"]
    named = ", ".join(f"{row['id']} ({row['value']})" for row in rows[:ROWS_NAMED])
    more = f" and {len(rows) - ROWS_NAMED} more" if len(rows) > ROWS_NAMED else ""
    return f"`{check['column']}` must {_rule(check['required'])}, but is not so in {named or 'any row'}{more}"


def _rule(limits: dict) -> str:
    """An expectation's limits in words: "be at least 20"."""
    if "regex" in limits:
        return "not be blank"
    if "value_set" in limits:
        return "be " + " or ".join(map(str, limits["value_set"])).lower()
    low = limits.get("min_value")
    high = limits.get("max_value")
    if high is None:
        return f"be at least {low:g}"
    return f"be {high:g}" if low == high else f"be at most {high:g}"
