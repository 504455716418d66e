"""Local endpoints that answer as they are told."""

import re

from endpoint import Endpoint, retrieve

from posgap.generation.generator import Completion

ENDLESS = ("<think> let me see, let me see", "length")


OFF = {"enable_thinking": False}


class Thinker(Endpoint):
    """An endpoint whose model answers after more thoughts than it gets tokens for, unless `comes_to_an_end(body)`."""

    def __init__(self, comes_to_an_end, **more):
        super().__init__(self.say, **more)
        self.comes_to_an_end = comes_to_an_end

    def say(self, text: str):
        body = next(each for each in reversed(self.bodies) if each["messages"][0]["content"] == text)
        return retrieve(text) if self.comes_to_an_end(body) else ENDLESS


class Saying:
    """A generator that says the same to every prompt, of which the limit of tokens cuts it."""

    def __init__(self, text, cut=True):
        self.completion = Completion(text, [7, 8], cut=cut)

    def generate(self, groups, sampling):
        for which, group in enumerate(groups):
            for at, _ in enumerate(group):
                yield which, at, self.completion


RECORD = re.compile(r'"(\w+)": "(\w+)"')


USAGE = {"prompt_tokens": 100, "completion_tokens": 20}


def lost_in_the_middle(text: str) -> str:
    """The right answer, unless its record stands in the middle of three."""
    records = RECORD.findall(text.rpartition("Key:")[0])
    return "nothing" if len(records) == 3 and records[1][1] == retrieve(text) else retrieve(text)
