"""Makes the text around a task's own in a prompt: a system message, and the chat template with its arguments.

A template is a user's program. It is rendered in transformers' sandbox, on a fixed date, and within limits of time,
size and memory.
"""

import re
import resource
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from posgap.foundation.errors import PosgapError, shorten
from posgap.foundation.heavy_types import PreTrainedTokenizerBase, Template
from posgap.foundation.retries import within

T = TypeVar("T")
DATE = "2024-07-26"  # today for templates: the date that Llama 3.2's assumes if it gets none
SECONDS = 10.0  # limit for a template to make a prompt
CHARACTERS = 1_000_000  # that a template may add to a prompt's text
MEMORY = 1 << 30  # bytes that it may take while it makes one
_OURS = {"messages": None, "tools": None, "documents": None, "add_generation_prompt": True}  # arguments always given
_PROBE = "What is asked?"
_ONE_AT_A_TIME = threading.Lock()  # since the bound is one of the whole process


@dataclass(frozen=True)
class Framing:
    """The text around a task's own.

    `system` is a message before it; `template` is the source of a chat template (jinja; empty: the model's own, if it
    has one), and `arguments` are what that is called with.
    """

    system: str = ""
    template: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def messages(self, text: str) -> list[dict[str, str]]:
        """The messages of a chat that asks `text`."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        return [*system, {"role": "user", "content": text}]

    def shown_settings(self, source: str = "") -> dict[str, Any]:
        """Returns the settings that prompts show, if the chat template with this `source` makes them; empty for a
        model's own template with nothing else set."""
        day = DATE if "strftime_now" in source else ""
        parts = {"system": self.system, "template_args": dict(self.arguments), "date": day}
        return {name: part for name, part in parts.items() if part}


PLAIN = Framing()


class ChatTemplate:
    """Makes prompts of texts by a chat template, of this `source`, as a tokenizer's model is asked with it.

    `ending` is the text between a prompt's own text and the model's answer. Raises `PosgapError` if the template is
    none, has no place for the framing's system message, lacks one of its arguments, or breaks a limit.
    """

    def __init__(self, source: str, tokenizer: PreTrainedTokenizerBase, framing: Framing):
        self.source = source
        self.framing = framing
        for name in framing.arguments:
            if name in _OURS:
                raise PosgapError(f"template_args: {name} is not for choice; leave it out")
            if not re.search(rf"\b{re.escape(name)}\b", source):
                raise PosgapError(f"template_args: the chat template has no argument {shorten(repr(name))}")
        self._values = {**tokenizer.special_tokens_map, **framing.arguments}
        self._template: Template = _run_in_limits(lambda: _environment().from_string(source))
        self._render([{"role": "user", "content": _PROBE}])
        asked = self._with_system()
        empty = self("")
        if asked == empty:
            raise PosgapError("the chat template leaves the question out; give another --template")
        # Their common ending, since a template may rewrite the text.
        self.ending = asked[len(asked) - common_beginning(asked[::-1], empty[::-1]) :]

    def __call__(self, text: str) -> str:
        """Returns the prompt that asks `text`, up to the start of the answer."""
        return self._render(self.framing.messages(text))

    def _with_system(self) -> str:
        """A prompt that a template has made which can make one without a system message."""
        hint = "put it into a template of your own, with --template"
        try:
            rendered = self(_PROBE)
        except PosgapError as error:
            raise PosgapError(f"system: not taken by {error}; {hint}") from None
        if self.framing.system.strip() not in rendered:
            raise PosgapError(f"system: the chat template leaves the system message out; {hint}")
        return rendered

    def _render(self, messages: list[dict[str, str]]) -> str:
        most = sum(len(message["content"]) for message in messages) + CHARACTERS

        def pieces() -> str:
            text = ""
            for piece in self._template.generate(**self._values | _OURS | {"messages": messages}):
                text += piece
                if len(text) > most:
                    raise ValueError(f"it adds more than {CHARACTERS} characters to a prompt")
            return text

        return _run_in_limits(pieces)


def common_beginning(a: str, b: str) -> int:
    """The length of the common beginning of both texts."""
    return bisect_left(range(min(len(a), len(b))), True, key=lambda same: a[: same + 1] != b[: same + 1])


def _run_in_limits(call: Callable[[], T]) -> T:
    """Returns the result of `call`, which runs the template; raises `PosgapError` if it fails or does not end."""
    try:
        with _memory_bounded():
            return within(SECONDS, call)
    except TimeoutError:
        reason = f"it has not ended within {SECONDS:g} s"
    except MemoryError:
        reason = f"it takes more than {MEMORY >> 20} MiB of memory"
    except Exception as error:  # any error of the user's program
        reason = next(iter(str(error).splitlines()), "") or type(error).__name__
    raise PosgapError(f"the chat template: {reason}")


@contextmanager
def _memory_bounded() -> Iterator[None]:
    """Within the block this process can take `MEMORY` more than it has; larger requests raise `MemoryError`.

    A template has too many ways to make much of little (methods, filters, macros, concatenation) to look at each.
    """
    with _ONE_AT_A_TIME:
        before, highest = resource.getrlimit(resource.RLIMIT_AS)
        has = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        bound = has + MEMORY if before == resource.RLIM_INFINITY else min(before, has + MEMORY)
        resource.setrlimit(resource.RLIMIT_AS, (bound, highest))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_AS, (before, highest))


def _environment() -> Any:
    """Returns transformers' sandbox for chat templates, with `DATE` as today and without powers that take long to
    compute."""
    from transformers.utils.chat_template_utils import _compile_jinja_template

    # From an empty template: the sandbox would compute the constants of our template while compiling it.
    environment = _compile_jinja_template("").environment.overlay()
    environment.globals = {**environment.globals, "strftime_now": datetime.fromisoformat(DATE).strftime}
    environment.intercepted_binops = frozenset({"**"})
    environment.binop_table = {**environment.binop_table, "**": _power}
    return environment


def _power(base: Any, exponent: Any) -> Any:
    if isinstance(base, int) and isinstance(exponent, int) and base.bit_length() * exponent > CHARACTERS:
        raise ValueError("it computes a number that is too large")
    return base**exponent
