"""The tasks that users choose by name: posgap's own, and those of installed packages."""

from posgap.foundation.choices import Choices
from posgap.tasks.judge import JUDGE
from posgap.tasks.multihop import COC, COT
from posgap.tasks.options import OPTIONS
from posgap.tasks.rag import RAG, RAG_ALONE, RAG_ONE
from posgap.tasks.retrieval import KV, QA
from posgap.tasks.spans import SPANS, SPANS_3, SPANS_4
from posgap.tasks.task import Task

TASKS: Choices[Task] = Choices(
    "task",
    "posgap.tasks",
    KV,
    QA,
    COT,
    COC,
    OPTIONS,
    JUDGE,
    RAG,
    RAG_ONE,
    RAG_ALONE,
    SPANS,
    SPANS_3,
    SPANS_4,
)
