"""Lists the tasks that users choose: posgap's own and those of installed packages by name, and the user's own by
file."""

from posgap.foundation.errors import PosgapError
from posgap.foundation.registry import Registry
from posgap.tasks.choosing import JUDGE, OPTIONS
from posgap.tasks.multihop import COC, COT
from posgap.tasks.rag import RAG, RAG_ALONE, RAG_ONE
from posgap.tasks.retrieval import DOCUMENT, KV, QA
from posgap.tasks.task import Task
from posgap.tasks.task_file import is_definition, is_file, task_of


class _Tasks(Registry[Task]):
    """Tasks by name, or by a definition, which a config holds in place of a task's file."""

    instead = "FILE.yaml"

    def takes(self, text: str) -> bool:
        return is_definition(text) or is_file(text)

    def __getitem__(self, name: str) -> Task:
        return task_of(name) if is_definition(name) else super().__getitem__(name)

    def require_name(self, name: str) -> str:
        if not is_definition(name):
            return super().require_name(name)
        try:
            if task_of(name).name in self.names():
                raise PosgapError(f"{task_of(name).name} is the name of a task that is there already")
        except PosgapError as error:
            raise ValueError(str(error)) from None
        return name


TASKS: Registry[Task] = _Tasks(
    "task",
    "posgap.tasks",
    *(KV, QA, COT, COC, OPTIONS, JUDGE, RAG, RAG_ONE, RAG_ALONE, DOCUMENT),
)
