"""Options of all verbs that make prompts: the task, and the text around its own."""

from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, model_validator

from posgap.data.reading import task_of_examples
from posgap.foundation.fields import MODEL, RARE, InputPath, ModelName, Values
from posgap.foundation.registry import Parameters
from posgap.generation.asking import ResponseLimits, Wording
from posgap.options.base import StageConfig
from posgap.tasks.fields import MAX_DOCS, ChatTemplateText, QuestionPlace, TaskName
from posgap.tasks.framing import Framing
from posgap.tasks.registry import TASKS
from posgap.tasks.task import PromptOrder

WORDED = (
    "task, which decides the wording of prompts and the scoring of responses: a name, or a YAML file of your own; "
    f"{TASKS.help_text()}"
)


QUESTION = "place of the question in a prompt: after the documents, before them, or on both sides"
SHUFFLE = "seed that shuffles each example's distractors, in the same way at every placement; 0: the file's order"


class FramingParameters(Parameters):
    """The text around a task's own in a prompt."""

    system: Annotated[str, RARE] = Field("", description="system message; empty: none")
    template: Annotated[ChatTemplateText, RARE] = Field(
        "", description="chat template in jinja: a file, or its text; empty: the model's own, if it has one"
    )
    template_args: Annotated[Values, RARE] = Field(
        {}, description='what the chat template is called with, like {"enable_thinking": false}'
    )

    def framing(self) -> Framing:
        """Returns the text around a task's own."""
        return Framing(self.system, self.template, self.template_args)


class _PromptFields(StageConfig):
    examples: InputPath = Field(description="file of examples, .jsonl or .jsonl.gz, or folder from `validate`")
    model: ModelName = Field(description=MODEL)
    task: TaskName = Field("kv", description=WORDED)
    n_docs: int = Field(20, ge=1, le=MAX_DOCS, description="documents in a prompt")
    max_new_tokens: int = Field(0, ge=0, description="longest response, in tokens; 0: the task's own limit")
    question: Annotated[QuestionPlace, RARE] = Field("after", description=QUESTION)
    shuffle: Annotated[int, RARE] = Field(0, ge=0, description=SHUFFLE)

    @model_validator(mode="before")
    @classmethod
    def _task_of_examples(cls, values: Any) -> Any:
        """If no task is given, a local retrieval log is for rag."""
        examples = values.get("examples") if isinstance(values, dict) else None
        if not examples or "task" in values or not Path(str(examples)).exists():
            return values
        task = task_of_examples(Path(str(examples)))
        return {**values, "task": task} if task else values


class PromptConfig(FramingParameters, _PromptFields):
    """The base of the configs of stages that make prompts."""

    def wording(self) -> Wording:
        """How prompts are worded."""
        return Wording(self.task, PromptOrder(self.question, self.shuffle), self.framing())

    def limits(self) -> ResponseLimits:
        """Returns the limits that end responses."""
        return ResponseLimits(self.max_new_tokens)
