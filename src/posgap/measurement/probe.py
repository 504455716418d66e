"""Looks at what a model actually says: whether it answers at once, is cut, repeats the prompt, or is always right or
wrong.

Every verb looks at a few responses in the same way: at the first ones of a sweep or a teacher as they come, without
sending any prompt twice, or at a few that are requested before tokens are forced.
"""

import logging
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from textwrap import shorten
from typing import NamedTuple

from posgap.generation.generator import Completion, Generator, Sampling, complete
from posgap.tasks.echo import is_echo, pieces
from posgap.tasks.examples import AnyExample
from posgap.tasks.placements import Placement
from posgap.tasks.prompts import TextPromptBuilder
from posgap.tasks.task import BASELINES

log = logging.getLogger(__name__)
LOOKED_AT = 16  # responses, or all if they are fewer, but no less than
FEW = 8
_AROUND = " \t\n\"'`*“”‘’«»([{"  # may stand before an answer that is given at once
_MIN_BEGINNING, _MAX_BEGINNING = 2, 6  # words: what follows more of them is mostly a key
_QUESTIONS = 4  # fewer say nothing of the task
_REFUSAL = re.compile(
    r"(i('m| am) (very )?sorry|sorry, |i apologi[sz]e|as an ai"
    r"|(unfortunately, )?i (can't|cannot|can not|am unable to|'m unable to|am not able to))\b",
    re.IGNORECASE,
)


class Response(NamedTuple):
    """A response to a prompt: whether it is right, and cut at the token limit; whether it repeats the prompt; the
    number of words and signs before the right answer, 0 if it begins with it, None if it lacks it; and the right
    answers."""

    text: str
    right: bool
    cut: bool
    echo: bool
    answer_after: int | None
    answers: tuple[str, ...] = ()


def response(prompt: str, said: str, cut: bool, answers: Sequence[str], right: bool, target: str = "") -> Response:
    """Returns the findings for a response to a prompt, given its right answers; right responses begin with `target`."""
    return Response(
        said, right, cut, is_echo(prompt, said, answers), answer_after(said, answers, target), tuple(answers)
    )


def observe(
    builder: TextPromptBuilder, example: AnyExample, placement: Placement, completion: Completion, metric: str = ""
) -> Response:
    """Returns the findings for the completion of a builder's prompt; it is right by `metric` ("" means the task's
    own)."""
    answers = builder.task.right_answers(example, placement)
    right = builder.task.score(completion.text, answers, metric) >= 0.5
    cut = completion.cut or completion.outcome == "truncated"
    return response(builder.text(example, placement), completion.text, cut, answers, right, target_of(builder))


def listen(
    generator: Generator, builder: TextPromptBuilder, asked: Sequence[tuple[AnyExample, Placement]], metric: str = ""
) -> "Probe":
    """Returns what a model's responses to these examples at these placements have in common."""
    prompts = [builder.prompt(example, placement) for example, placement in asked]
    said = complete(generator, prompts, Sampling.for_builder(builder))
    return Probe([observe(builder, *one, completion, metric) for one, completion in zip(asked, said, strict=True)])


def answer_after(said: str, answers: Sequence[str], target: str = "") -> int | None:
    """Returns the number of words and signs before the first right answer in a response; None if it has none.

    It is 0 if the response begins with an answer, or with `target` and an answer, ignoring quotes and brackets before
    it. An answer that is only part of a word does not count.
    """
    text = said.lstrip(_AROUND)
    if target and text.lower().startswith(target.lower()):
        text = text[len(target) :].lstrip(_AROUND)
    words = pieces(text)
    found = [_first(words, answer) for answer in map(pieces, answers) if answer]
    return min((at for at in found if at is not None), default=None)


def _first(words: Sequence[str], answer: Sequence[str]) -> int | None:
    starts = range(len(words) - len(answer) + 1)
    return next((at for at in starts if list(words[at : at + len(answer)]) == list(answer)), None)


@dataclass(frozen=True)
class Probe:
    """What some responses have in common."""

    responses: Sequence[Response]

    def count(self, of: Callable[[Response], bool]) -> int:
        """Returns the number of such responses."""
        return sum(map(of, self.responses))

    @property
    def right(self) -> int:
        """The number of right ones."""
        return self.count(lambda each: each.right)

    @property
    def cut(self) -> int:
        """The number of responses that the token limit cut before a right answer: those cut after one lose nothing."""
        return self.count(lambda each: each.cut and not each.right)

    @property
    def at_once(self) -> int:
        """The number that begin with a right answer."""
        return self.count(lambda each: each.answer_after == 0)

    @property
    def later(self) -> int:
        """The number that have a right answer, and do not begin with it."""
        return self.count(lambda each: bool(each.answer_after))

    @property
    def beginning(self) -> str:
        """Returns the two or more words that at least half of the responses without a right answer at their start begin
        with; empty if there are none, or if more responses begin with a right answer. It tells a preamble if no answer
        is right.

        A repeated response, as at two placements of one question, counts once, so that its answer is not taken for a
        part of the preamble. If there is no other response, its copies count.
        """
        others = [each.text for each in self.responses if each.answer_after != 0]
        if len(others) < 2 or len(others) <= self.at_once:
            return ""
        different = list(dict.fromkeys(others))
        words = [text.lstrip(_AROUND).split() for text in (different if len(different) > 1 else others)]
        best: list[str] = []
        for length in range(_MIN_BEGINNING, min(_MAX_BEGINNING, max(map(len, words))) + 1):
            often = Counter(tuple(each[:length]) for each in words if len(each) >= length).most_common(1)
            if not often or often[0][1] < max(2, len(words) / 2):
                break
            best = list(often[0][0])
        return " ".join(best) if len(set(best)) >= _MIN_BEGINNING else ""

    @property
    def answers_at_once(self) -> bool:
        """Returns whether right answers stand at the forced tokens: directly behind the prompt. If there are no right
        answers, it is true unless the responses share a beginning."""
        return self.at_once >= self.later and not (self.beginning and not self.at_once)

    @property
    def preamble(self) -> str:
        """Describes in words where answers stand; empty if they begin the responses."""
        if self.answers_at_once:
            return ""
        if self.beginning:
            return f'after words like "{self.beginning} ..."'
        after = median(each.answer_after for each in self.responses if each.answer_after)
        return f"after {after:g} words and signs"

    def findings(self, limit: int) -> dict[str, str]:
        """What the user should know before the figures, each by a name: nothing if all is well. `limit` is the most
        tokens of a response."""
        n = len(self.responses)
        said = dict[str, str]()
        echoes = self.count(lambda each: each.echo)
        refusals = self.count(lambda each: not each.right and bool(_REFUSAL.match(each.text.strip())))
        if 2 * echoes >= n:
            said["echo"] = (
                f"{echoes} of {n} responses repeat the prompt at length: a right answer among them may be copied, "
                "not found"
            )
        if 2 * self.cut >= n:
            instead = "" if "echo" in said else f"; try --max-new-tokens {2 * limit}"
            said["cut"] = f"{self.cut} of {n} responses are cut at {limit} tokens before a right answer{instead}"
        if 2 * refusals >= n:
            said["refused"] = (
                f"{refusals} of {n} responses refuse in words, and count as wrong answers: try a system message, "
                '--system "All that is asked is in the documents below."'
            )
        questions = len({each.answers for each in self.responses})  # or more, if some share an answer
        if len({each.text.strip() for each in self.responses}) == 1 and questions >= _QUESTIONS:
            said["same"] = (
                f'all of {n} responses are "{shorten(self.responses[0].text.strip(), 40)}", to {questions} '
                "questions: the model may not do this task, or not be shown the question (--template, --system)"
            )
        # No bound is given for the mean: these are a few questions at some of the placements.
        if n >= FEW and self.right == 0:
            said["floor"] = f"none of {n} is right"
            hold = self.count(lambda each: each.answer_after is not None)
            if 2 * hold >= n:
                said["floor"] += f", but {hold} contain an answer after the scored part; try --metric answer_words"
        if n >= LOOKED_AT and self.right == n:
            said["ceiling"] = f"all of {n} are right: if the rest is too, use more documents"
        return said


@dataclass
class FirstAnswers:
    """Looks at the first answers of longer work as they come, and reports once what the user should know."""

    builder: TextPromptBuilder
    total: int
    metric: str = ""
    responses: list[Response] = field(default_factory=list)

    def __call__(self, example: AnyExample, placement: Placement, completion: Completion) -> None:
        as_usual = not placement.baseline or BASELINES[placement.baseline].is_order
        if not as_usual or completion.outcome != "answered" or len(self.responses) >= LOOKED_AT:
            return
        self.responses.append(observe(self.builder, example, placement, completion, self.metric))
        if len(self.responses) == min(LOOKED_AT, max(self.total, FEW)):
            limit = self.builder.max_new_tokens + self.builder.max_thinking_tokens
            found = Probe(self.responses).findings(limit)
            if found:
                log.info("the first answers: %s", "; ".join(found.values()))


def why_hopeless(
    builder: TextPromptBuilder, seen: Sequence[tuple[AnyExample, Placement, Completion]], metric: str = ""
) -> str:
    """Returns why a sweep that begins with these answers is pointless, and what to do; empty if it is not. It is if all
    are empty, cut before a right answer, or of one wording to several questions."""
    n = len(seen)
    limit = builder.max_new_tokens + builder.max_thinking_tokens
    if all(completion.outcome == "empty" for _, _, completion in seen):
        return f"all of the first {n} responses are empty: see what the server says to one prompt"
    probe = Probe([observe(builder, *each, metric) for each in seen if each[2].outcome in ("answered", "truncated")])
    if len(probe.responses) < n or probe.right:
        return ""
    return probe.findings(limit).get("cut" if probe.cut == n else "same", "")


def target_of(builder: TextPromptBuilder) -> str:
    """Returns the beginning of a task's right responses, before the answer."""
    return builder.task.target.partition("{answer}")[0].strip()
