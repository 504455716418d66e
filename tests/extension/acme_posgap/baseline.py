"""A baseline: the first distractor alone, which answers nothing."""

from posgap.tasks.task import Baseline

MISLED = Baseline(
    name="misled",
    help="with a document that does not answer",
    documents=lambda task, example, n_docs, order: example.distractors[:1],
)
