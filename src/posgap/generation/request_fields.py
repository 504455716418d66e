"""The fields of a request to an endpoint, without those that it does not take."""

import logging
from collections.abc import Mapping
from typing import Any

from posgap.foundation.errors import PosgapError
from posgap.generation.endpoint_address import with_variables
from posgap.generation.generator import Sampling
from posgap.generation.served import ServedModel
from posgap.generation.wire import Fault
from posgap.tasks.framing import Framing
from posgap.tasks.prompts import Prompt

log = logging.getLogger(__name__)
REQUIRED_FIELDS = ("model", "messages", "prompt")
_WITHOUT = {
    "temperature": ": the endpoint's own sampling applies, which may not be greedy",
    "max_tokens": ": answers are as long as the endpoint lets them be",
    "max_completion_tokens": ": answers are as long as the endpoint lets them be",
}


class RequestFields:
    """Makes the fields of requests, and learns from faults which of them the endpoint does not take.

    A refused field is left out from then on, and listed in `served`. Fields from `body` and the framing's arguments are
    never left out.
    """

    def __init__(self, model: str, is_chat: bool, framing: Framing, body: Mapping[str, Any], served: ServedModel):
        self.model = model
        self.is_chat = is_chat
        self.framing = framing
        self.served = served
        self.body = with_variables(dict(body))
        arguments = {"chat_template_kwargs": dict(framing.arguments)} if framing.arguments else {}
        self.asked_for = self.body | arguments
        self.limit_name = "max_tokens"

    def fields(self, prompt: Prompt, sampling: Sampling) -> dict[str, Any]:
        """The fields of a prompt's request."""
        what = {"messages": self.framing.messages(prompt.text)} if self.is_chat else {"prompt": prompt.text}
        ours = {
            self.limit_name: sampling.limit,
            "temperature": sampling.temperature,
            "seed": sampling.seed_of(prompt),
            "stop": list(sampling.stop) or None,
        }
        left_out = self.served.identity.left_out
        kept = {name: value for name, value in ours.items() if name not in left_out}
        more = {name: value for name, value in (kept | self.asked_for).items() if value is not None}
        return {"model": self.model, **what, **more}

    def learn_from(self, fault: Fault, words: str, sent: Mapping[str, Any]) -> bool:
        """Returns whether the fault refused a field of the request; later requests rename it or leave it out.

        `words` are the fault without secrets. Raises `PosgapError` if the user asked for the field.
        """
        if "max_tokens" in sent and "max_completion_tokens" in fault.words:
            # Some models insist on the newer name of the limit, which older servers do not know.
            self.limit_name = "max_completion_tokens"
            return True
        refused = next((name for name in sent if name not in REQUIRED_FIELDS and fault.refuses(name)), None)
        if refused is None or fault.is_of_a_filter:
            return False
        shown = self.served.shown
        if refused in self.asked_for:
            option = "--body" if refused in self.body else "--template-args"
            raise PosgapError(f"{shown}: does not accept {refused}, which {option} sets: {words}")
        if refused not in self.served.identity.left_out:  # other requests that were under way were refused too
            log.warning(
                "%s: does not accept %s, which is left out from now on%s (%s)",
                shown, refused, _WITHOUT.get(refused, ""), words,
            )  # fmt: skip
            self.served.identity = self.served.identity.with_left_out(refused)
        return True
