"""What a recipe tells generation: which model answers, how its prompts are worded, and where its responses end."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from posgap.foundation.registry import Parameters
from posgap.tasks.framing import PLAIN, Framing
from posgap.tasks.task import AS_GIVEN, PromptOrder

P = TypeVar("P", bound=Parameters)
NO_STOP = "none"  # asks for no stop string, if there are usual ones


@dataclass(frozen=True)
class ModelAccess:
    """Which model answers, and how it is reached: by the name of a backend, with the parameters of backends.

    `vllm_options` are further arguments of `vllm.LLM`. `why_in_memory` says what the model is needed in this process
    for, which vLLM's is not; empty for nothing.
    """

    model: str
    backend: str
    dtype: str = "auto"
    batch_tokens: int = 0
    seed: int = 0
    parameters: Mapping[str, Any] = field(default_factory=dict, repr=False)  # with headers, which may be secret
    vllm_options: Mapping[str, Any] = field(default_factory=dict)
    why_in_memory: str = ""

    def parameters_of(self, kind: type[P]) -> P:
        """The parameters of one backend."""
        return kind(**{name: self.parameters[name] for name in kind.model_fields if name in self.parameters})


@dataclass(frozen=True)
class Wording:
    """How prompts are worded: the task's name, the order of a prompt's parts, the text around it, and the metric that
    scores responses ("": the task's own). The strings that end a response depend on the metric.
    """

    task: str
    order: PromptOrder = AS_GIVEN
    framing: Framing = PLAIN
    metric: str = ""


@dataclass(frozen=True)
class ResponseLimits:
    """Limits of responses: tokens of the answer (0: the task's own number), tokens of thoughts, and the `stop` strings
    (None: the usual ones) before which they end."""

    max_new_tokens: int = 0
    max_thinking_tokens: int = 0
    stop: tuple[str, ...] | None = None

    @staticmethod
    def parse_stop(words: Sequence[str]) -> tuple[str, ...] | None:
        """Returns `stop` from the words of the option: none for the usual strings, or `NO_STOP` for no string."""
        return None if not words else () if list(words) == [NO_STOP] else tuple(words)

    def stop_strings(self, usual: Sequence[str]) -> tuple[str, ...]:
        """The strings that end a response, if it uses the usual ones."""
        return tuple(usual) if self.stop is None else self.stop
