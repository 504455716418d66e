"""Whether a model can be judged by forcing right answers upon it: only if it answers at once.

Forced tokens stand right behind the prompt. If a model first says "The value corresponding to ...", their
log-probability tells nothing, and accuracy is 0 though it may answer well.
"""

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

from posgap.foundation.progress import track
from posgap.generation.generator import Generator, Sampling, complete_groups
from posgap.measurement.probe import Probe, response
from posgap.scaling.questions import SearchQuestion, as_groups

log = logging.getLogger(__name__)
EXAMPLES = 8  # examples that the model answers freely, at three placements each


class SpontaneousAnswers(NamedTuple):
    """A model's responses to some questions: how many `begin` with the tokens that would be forced, and further
    findings on all of them."""

    begin: int
    probe: Probe

    @property
    def hindrance(self) -> str:
        """Says what the model does that forbids forcing, to follow "the model"; empty if forcing is sound.

        It is sound if at least half as many responses begin with the forced tokens as are right, since a tie or two
        make no difference. If none is right and none begins with them, it is sound unless they share other first words.
        """
        right = self.probe.right
        n = len(self.probe.responses)
        if 2 * self.begin >= right and (self.begin or not self.probe.beginning):
            return ""
        where = f" ({self.probe.preamble})" if self.probe.preamble else ""
        at_once = f"only {self.begin}" if self.begin else "none"
        return f"answers {right} of {n} questions right, but {at_once} of its responses begin with the answer{where}"


def pick_few(questions: Sequence[Sequence[SearchQuestion]]) -> list[list[SearchQuestion]]:
    """The first `EXAMPLES` examples of `questions [E][P]` at the first, middle and last of their placements."""
    some = sorted({0, len(questions[0]) // 2, len(questions[0]) - 1})
    return [[row[at] for at in some] for row in questions[:EXAMPLES]]


def answer_freely(
    generator: Generator,
    questions: Sequence[Sequence[SearchQuestion]],
    score: Callable[[str, Sequence[str]], float],
    sampling: Sampling,
    target: str = "",
) -> SpontaneousAnswers:
    """Makes the model answer a few of `questions [E][P]` freely. `target` is the beginning of right responses, before
    the answer. If the token limit cuts most of them, it says so."""
    asked = pick_few(questions)
    begin = 0
    responses = []
    answered = complete_groups(generator, as_groups(asked), sampling)
    for which, completions in track(answered, len(asked), "whether the model answers at once"):
        for question, said in zip(asked[which], completions, strict=True):
            begin += list(said.token_ids[: len(question.response)]) == list(question.response)
            right = score(said.text, question.answers) == 1
            responses.append(response("", said.text, said.cut, question.answers, right, target))
    probe = Probe(responses)
    cut = probe.findings(sampling.limit).get("cut")
    if cut:
        log.info("when the model answers freely: %s", cut)
    return SpontaneousAnswers(begin, probe)
