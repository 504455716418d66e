"""The tasks of lm-evaluation-harness: position groups, the accuracy at each placement, and the gap.

Each is a file of two lines beside this one; a package's own task takes one like them:

    task: posgap_NAME
    class: !function posgap.peers.harness.PositionTask
"""

import logging
import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import datasets
from lm_eval.api.task import ConfigurableTask

from posgap.peers.questions import PlacedScore, PositionFigures, Questions, options_among

log = logging.getLogger(__name__)
PREFIX = "posgap_"


class PositionTask(ConfigurableTask):
    """Every example at every placement, asked and scored as `posgap sweep` does.

    The harness's `--metadata` says what is asked: `{"examples": "examples.jsonl", "n_docs": 20}`, with the options of
    `posgap sweep` by their names. Other entries of it, such as the model's own arguments, are left alone.
    """

    in_chat = False  # whether the harness puts prompts into a chat template

    def __init__(self, config: Mapping[str, Any]):
        name, metadata = config["task"], dict(config.get("metadata") or {})
        self.questions = Questions(name, name.removeprefix(PREFIX), **options_among(metadata))
        self.figures = PositionFigures(self.questions.placements, self.questions.categories)
        super().__init__(
            config={
                "task": name,
                "output_type": "generate_until",
                "test_split": "test",
                "num_fewshot": 0,
                "doc_to_text": self._prompt_of,
                "doc_to_target": "answer",
                "process_results": self._score_response,
                "metric_list": [
                    {"metric": figure, "aggregation": partial(self._aggregate, figure), "higher_is_better": higher}
                    for figure, higher in self.figures.higher_is_better.items()
                ],
                # What ends a response is cut off afterwards: the harness would cut before any text of the answer too.
                "generation_kwargs": {
                    "until": [], "do_sample": False, "temperature": 0.0,
                    "max_gen_toks": self.questions.builder.max_new_tokens,
                },
                "metadata": {"version": 1.0} | metadata,
            }
        )  # fmt: skip

    def download(self, dataset_kwargs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        """Takes the questions in place of a dataset from the hub."""
        rows = []
        for number, question in enumerate(self.questions.all):
            answer = self.questions.right_answers(question)[0]
            row = {"question_id": number, "id": question.example.id, "placement": question.name}
            rows.append(row | {"question": question.example.question, "answer": answer})
        self.dataset = datasets.DatasetDict({"test": datasets.Dataset.from_list(rows)})

    def build_all_requests(self, **options: Any) -> None:
        """Makes the prompts, in a chat template or not."""
        self.in_chat = bool(options.get("apply_chat_template"))
        super().build_all_requests(**options)

    def _prompt_of(self, doc: Mapping[str, Any]) -> str:
        return self.questions.prompt_text(self.questions.all[doc["question_id"]])

    def _score_response(self, doc: Mapping[str, Any], results: Sequence[str]) -> dict[str, PlacedScore]:
        question = self.questions.all[doc["question_id"]]
        scoring = self.questions.scoring if self.in_chat else self.questions.scoring_of_base
        score = scoring.score(
            scoring.response(self._prompt_of(doc), results[0]), self.questions.right_answers(question)
        )
        return dict.fromkeys(self.figures.higher_is_better, (doc["id"], doc["placement"], score))

    def _aggregate(self, figure: str, scores: Sequence[PlacedScore]) -> float:
        value = self.figures.value(figure, scores)
        if figure == "gap" and math.isnan(value):
            log.warning(
                "%s: there is no gap: no example was asked for at all of its %d placements; give --limit a multiple of "
                "that number, or fewer positions",
                self.config.task, len(self.figures.names),
            )  # fmt: skip
        return value
