"""Looks at answers to equal prompts, which tell a server's noise, and at equal answers to different ones, which tell a
gateway that stores answers."""

from posgap.generation.wire import EndpointAnswer
from posgap.tasks.prompts import Prompt

_MIN_ID = 20  # characters; Ollama's ids have three digits, and so agree by chance
STORED = (
    "repeats a stored answer for another prompt (the same completion id): an example's placements get the same "
    'answer, which hides the gap; turn its cache off (LiteLLM: --body \'{"cache": {"no-cache": true}}\')'
)


class SamePrompts:
    """Counts prompts that were repeated at temperature 0 (`repeated`) and those whose answers differ (`differing`),
    which is the server's own noise.

    A completion's id tells an answer that was stored for another prompt.
    """

    def __init__(self) -> None:
        self.repeated = self.differing = 0
        self._texts: dict[int, int] = {}  # hash of a prompt to that of its first answer
        self._prompts: dict[tuple[str, str], int] = {}  # hashes of prompts by the id and text of their answers
        self._has_stored = False

    def note(self, prompt: Prompt, answer: EndpointAnswer, is_greedy: bool) -> bool:
        """Notes an answer; returns whether it is the first that was stored for another prompt."""
        text = answer.completion.text
        asked = hash((prompt.text, prompt.sample))
        if is_greedy and answer.completion.outcome == "answered":
            said = hash(text)
            if asked in self._texts:
                self.repeated += 1
                self.differing += self._texts[asked] != said
            else:
                self._texts[asked] = said
        if self._has_stored or len(answer.id) < _MIN_ID or not text:
            return False
        self._has_stored = self._prompts.setdefault((answer.id, text), asked) != asked
        return self._has_stored
