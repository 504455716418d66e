"""A pilot of a sweep: what a model says to a few made questions, and with which of them a sweep would show a curve.

Keys and values are whole UUIDs at first. Where a model is right almost always there are more records in the next
questions; where it is so almost never, keys and values are shorter, and then there are fewer records.
"""

import logging
import math
import shlex
import time
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, cast

from posgap.data.readers import litm_kv_examples
from posgap.data.synthetic import uuid_records
from posgap.foundation.errors import PosgapError
from posgap.foundation.progress import track
from posgap.generation.backends import BACKENDS, open_generator
from posgap.generation.endings import ResponseStream
from posgap.generation.generator import Completion, Generator, Sampling
from posgap.measurement.config import SweepConfig
from posgap.measurement.probe import Probe, Response, in_words, seen
from posgap.models.memory import available_bytes
from posgap.models.precision import n_parameters
from posgap.tasks.examples import KVExample
from posgap.tasks.fields import MAX_DOCS
from posgap.tasks.placements import Placement, spaced_positions
from posgap.tasks.prompts import PromptBuilder

log = logging.getLogger(__name__)
TASK = "kv"
POSITIONS = 5  # at most, spread evenly
FIRST, ALL = 2, 5  # examples: the first of them decide where all or none of their answers are right
MIN_SHARE, MAX_SHARE = 0.15, 0.85  # of right answers, between which a curve can be seen
MAX_SECONDS = 600.0  # of trials; none is begun that would take longer than what is left
MAX_TRIALS = 8
MIN_DOCS = 3
SHORT = 8  # digits of a key or value that is not whole

Ease = Literal["too easy", "too hard", "useful"]


class Setting(NamedTuple):
    """How many records a prompt has, and how many digits each of their keys and values; 0: whole UUIDs."""

    n_docs: int
    digits: int = 0

    def __str__(self) -> str:
        kind = f"with keys and values of {self.digits} digits" if self.digits else "of whole UUIDs"
        return f"{self.n_docs} records {kind}"

    @property
    def placements(self) -> list[Placement]:
        """The placements that are asked for."""
        return [Placement((position,), self.n_docs) for position in spaced_positions(self.n_docs, POSITIONS)]

    def examples(self, count: int, seed: int = 0) -> list[KVExample]:
        """The first of the examples that the commands of `making` write, or of another seed's."""
        rows = enumerate(uuid_records(count, self.n_docs, seed), start=1)
        made = (litm_kv_examples(row, "made", line, self.digits, self.digits) for line, row in rows)
        return [example for of_line in made for example in of_line]

    def making(self, n_examples: int, seed: int = 0) -> list[str]:
        """The commands that make so many examples."""
        drawn = f" --seed {seed}" * bool(seed)
        cut = f" --key-digits {self.digits} --value-digits {self.digits}" if self.digits else ""
        return [
            f"posgap data make kv --n-docs {self.n_docs} --n-examples {n_examples}{drawn} --out made.jsonl.gz",
            f"posgap data import --format litm-kv --input made.jsonl.gz{cut} --out kv.jsonl.gz",
        ]


class Answer(NamedTuple):
    """A response at one of a setting's placements, by its number; the tokens of its prompt, and of itself; and after
    how many of these it is right, 0 where it never is."""

    at: int
    said: Response
    prompt_tokens: int
    tokens: int
    right_after: int

    @property
    def found(self) -> bool:
        """Whether it is right, and not because it repeats the prompt."""
        return self.said.right and not self.said.echo


class Trial(NamedTuple):
    """What came of some questions of a setting, and the seconds that it took."""

    setting: Setting
    answers: list[Answer]
    seconds: float

    @property
    def probe(self) -> Probe:
        """What its responses have in common."""
        return Probe([answer.said for answer in self.answers])

    @property
    def share(self) -> float:
        """The share of right answers, 0 to 1, without responses that repeat the prompt."""
        return sum(answer.found for answer in self.answers) / len(self.answers)

    @property
    def ease(self) -> Ease:
        """Whether a sweep of such questions could show a curve. They are too hard too where most responses are cut: the
        position is not what decides then."""
        if self.share < MIN_SHARE or "cut" in self.probe.findings(0):
            return "too hard"
        return "too easy" if self.share > MAX_SHARE else "useful"

    @property
    def prompt_tokens(self) -> int:
        """Tokens of a prompt, the mean."""
        return round(sum(answer.prompt_tokens for answer in self.answers) / len(self.answers))

    @property
    def tokens_per_second(self) -> float:
        """Tokens of prompts and responses together, by the second."""
        return sum(answer.prompt_tokens + answer.tokens for answer in self.answers) / max(self.seconds, 1e-9)

    @property
    def seconds_each(self) -> float:
        """Seconds for a prompt and its response."""
        return self.seconds / len(self.answers)

    @property
    def right_by_position(self) -> list[int]:
        """How many answers are right at each placement."""
        placements = range(len(self.setting.placements))
        return [sum(answer.found for answer in self.answers if answer.at == at) for at in placements]

    def and_more(self, other: "Trial") -> "Trial":
        """Both trials of a setting together."""
        return Trial(self.setting, [*self.answers, *other.answers], self.seconds + other.seconds)

    def sentence(self, limit: int) -> str:
        """All of it in words, where responses have at most `limit` tokens."""
        found = self.probe.findings(limit)
        beside = "".join(f"; {found[name]}" for name in ("echo", "cut") if name in found)
        at = ", ".join(placement.name for placement in self.setting.placements)
        right = ", ".join(map(str, self.right_by_position))
        each = len(self.answers) // len(self.setting.placements)
        return (
            f"{self.setting}, {self.prompt_tokens:,} tokens a prompt: {sum(self.right_by_position)} of "
            f"{len(self.answers)} right (at {at}: {right} of {each}), {self.ease}{beside}"
        )


def following(tried: Mapping[Setting, Ease]) -> Setting | None:
    """What to try after these, of which the last was no use; None where there is nothing."""
    last = list(tried)[-1]
    alike = {setting.n_docs: ease for setting, ease in tried.items() if setting.digits == last.digits}
    easy, hard = ([n for n, ease in alike.items() if ease == what] for what in ("too easy", "too hard"))
    if not easy and not last.digits:
        return Setting(last.n_docs, SHORT)
    between = (max(easy) + min(hard)) // 2 if easy and hard else 0
    n_docs = between or (2 * max(easy) if easy else min(hard) // 2)
    is_new = MIN_DOCS <= n_docs <= MAX_DOCS and n_docs not in alike
    return Setting(n_docs, last.digits) if is_new else None


class Search(NamedTuple):
    """The trials that were made, the first part of the last one, and the setting that would have come next, with the
    reason why it was not tried."""

    trials: list[Trial]
    first: Trial | None
    untried: Setting | None = None
    why: str = ""


def search(
    first: Setting,
    attempt: Callable[[Setting, int, int], Trial],
    needed: Callable[[Setting], int],
    room: int,
    limit: int,
) -> Search:
    """Tries settings until one is useful, or none is left for which there is time.

    `attempt(setting, begin, end)` asks these of a setting's examples, at each of its placements. `needed` is how many
    tokens a prompt has, of which the model reads `room`.
    """
    trials: list[Trial] = []
    part: Trial | None = None
    setting: Setting | None = first
    while setting and len(trials) < MAX_TRIALS:
        if (tokens := needed(setting)) > room:
            return Search(trials, part, setting, f"their {tokens:,} tokens do not fit into the model's context")
        spent = sum(trial.seconds for trial in trials)
        if trials:
            asked = FIRST * len(setting.placements)
            seconds = asked * trials[-1].seconds_each * tokens / trials[-1].prompt_tokens
            if seconds > MAX_SECONDS - spent:
                begin = "" if setting.digits else f" (--n-docs {setting.n_docs} begins with them)"
                return Search(trials, part, setting, f"that would take {in_words(seconds)} more{begin}")
        trial = part = attempt(setting, 0, FIRST)
        if 0 < trial.share < 1 and trial.seconds * ALL / FIRST <= (MAX_SECONDS - spent) / 2:  # others may follow
            trial = trial.and_more(attempt(setting, FIRST, ALL))
        trials.append(trial)
        log.info("%s", trial.sentence(limit))
        if trial.ease == "useful":
            return Search(trials, part)
        setting = following({trial.setting: trial.ease for trial in trials})
    return Search(trials, part)


class Pilot(NamedTuple):
    """A model's trials, the limit of its responses, the tokens a second in each dtype, the one of `--dtype auto` first,
    and how many of how many scores are the same in both."""

    found: Search
    limit: int
    rates: dict[str, float]
    alike: tuple[int, int] = (0, 0)

    @property
    def last(self) -> Trial:
        """The last trial, which is the useful one if there is any."""
        return self.found.trials[-1]

    @property
    def is_useful(self) -> bool:
        """Whether there are questions of which a sweep could show a curve."""
        return self.last.ease == "useful"

    @property
    def longest(self) -> int:
        """The most tokens after which a response was right; 0 where none was."""
        return max(answer.right_after for answer in self.last.answers)

    @property
    def max_new_tokens(self) -> int:
        """The limit that a sweep needs: more where responses are cut before a right answer, and less where they only go
        on after one."""
        found = self.last.probe.findings(self.limit)
        if "cut" in found:
            return self.limit if "echo" in found else 2 * self.limit
        goes_on = self.longest and self.last.probe.count(lambda each: each.cut)
        return min(self.limit, 8 * math.ceil(1.25 * self.longest / 8)) if goes_on else self.limit

    def lines(self) -> list[str]:
        """What else somebody should know of the model, a line each."""
        probe, (chosen, *others), said = self.last.probe, self.rates, list[str]()
        if probe.preamble:
            said.append(
                f"it answers {probe.preamble}: verbs that force right answers upon a model refuse it, or let it "
                "generate its own"
            )
        elif probe.right:
            said.append("it answers at once: right answers can be forced upon it")
        if self.max_new_tokens < self.limit:
            said.append(
                f"its answers are right after at most {self.longest} tokens, and "
                f"{probe.count(lambda each: each.cut)} of {len(self.last.answers)} responses go on up to the limit of "
                f"{self.limit}: --max-new-tokens {self.max_new_tokens} is enough"
            )
        slower = "".join(f"; {name}: {self.rates[name]:,.0f}" for name in others)
        alike = "; {} of {} scores are the same in both".format(*self.alike) if others else ""
        said.append(f"{chosen} (--dtype auto): {self.rates[chosen]:,.0f} tokens a second{slower}{alike}")
        if not self.is_useful:
            untried, why = self.found.untried, self.found.why
            beyond = f"; {untried} were not tried: {why}" if untried else ""
            said.append(f"no questions were found that it answers now and then, as a curve needs it{beyond}")
        return said

    def commands(self, model: str, n_examples: int) -> list[str]:
        """The commands that make so many examples of the useful kind, and sweep a model with them."""
        setting = self.last.setting
        limit = f" --max-new-tokens {self.max_new_tokens}" if self.max_new_tokens != self.limit else ""
        positions = ",".join(placement.name for placement in setting.placements)
        return [
            *setting.making(n_examples),
            f"posgap sweep --task {TASK} --model {shlex.quote(model)} --examples kv.jsonl.gz --n-docs {setting.n_docs} "
            f"--positions {positions}{limit} --out run/base",
        ]

    def described(self) -> dict[str, Any]:
        """All of it as JSON values."""
        trials = [
            {
                "n_docs": trial.setting.n_docs,
                "digits": trial.setting.digits,
                "positions": [placement.positions[0] for placement in trial.setting.placements],
                "right": trial.right_by_position,
                "asked": len(trial.answers),
                "echoes": trial.probe.echoes,
                "cut": trial.probe.cut,
                "prompt_tokens": trial.prompt_tokens,
                "seconds": round(trial.seconds, 3),
            }
            for trial in self.found.trials
        ]
        return {
            "useful": self.is_useful,
            "trials": trials,
            "answers_at_once": self.last.probe.answers_at_once,
            "max_new_tokens": self.max_new_tokens,
            "tokens_per_second": {name: round(rate, 1) for name, rate in self.rates.items()},
        }


@dataclass(frozen=True)
class Asking:
    """A model that answers, with what makes its prompts."""

    build: PromptBuilder
    generator: Generator

    def __call__(self, setting: Setting, begin: int, end: int) -> Trial:
        """What it says to some examples of a setting, at each of its placements."""
        examples, placements = setting.examples(end)[begin:], setting.placements
        groups = [[self.build.prompt(example, placement) for placement in placements] for example in examples]
        answers: dict[tuple[int, int], Answer] = {}
        began = time.monotonic()
        asked = self.generator.generate(groups, Sampling.of(self.build))
        for which, at, completion in track(asked, len(examples) * len(placements), str(setting)):
            said = seen(self.build, examples[which], placements[at], completion)
            after = self._right_after(completion, examples[which], placements[at]) if said.right else 0
            prompt_tokens, tokens = len(groups[which][at].token_ids), len(completion.token_ids)
            answers[which, at] = Answer(at, said, prompt_tokens, tokens, after)
        return Trial(setting, [answers[key] for key in sorted(answers)], time.monotonic() - began)

    def needed(self, setting: Setting) -> int:
        """The tokens of a prompt of a setting."""
        (example,) = setting.examples(1)
        return len(self.build.token_ids(self.build.text(example, setting.placements[0])))

    def _right_after(self, completion: Completion, example: KVExample, placement: Placement) -> int:
        """The least number of a right completion's tokens that are right already."""
        task, sampling = self.build.task, Sampling.of(self.build)

        def is_right(count: int) -> bool:
            stream = ResponseStream(self.build.tokenizer, (), sampling)
            stream.read(completion.token_ids[:count])
            return task.score(stream.completion().text, task.answers(example, placement)) >= 0.5

        return bisect_left(range(len(completion.token_ids)), True, key=is_right)


def pilot(model: str, n_docs: int) -> Pilot:
    """Tries a model of this machine on made key-value records, at first `n_docs` of them in a prompt.

    Raises `PosgapError` where even the first do not fit into its context.
    """
    config = SweepConfig(model=model, task=TASK, examples="-", out="-").settled()
    build = cast(PromptBuilder, BACKENDS[config.backend].builder(config))
    limit = build.max_new_tokens
    asking = Asking(build, open_generator(config, build))
    found = search(Setting(n_docs), asking, asking.needed, build.context - limit, limit)
    if found.first is None:
        raise PosgapError(f"{model}: {found.untried}: {found.why}; lower n_docs")
    del asking  # two of a model might not fit into memory
    rates, alike = {str(config.dtype): found.first.tokens_per_second}, (0, 0)
    left = MAX_SECONDS - sum(trial.seconds for trial in found.trials)
    if config.dtype != "float32" and 3 * found.first.seconds < left and _fits_in_float32(model):
        single = config.model_copy(update={"dtype": "float32"})
        other = Asking(build, open_generator(single, build))(found.first.setting, 0, FIRST)
        rates["float32"] = other.tokens_per_second
        scores = zip(found.first.answers, other.answers, strict=True)
        alike = sum(one.said.right == two.said.right for one, two in scores), len(other.answers)
    return Pilot(found, limit, rates, alike)


def _fits_in_float32(model: str) -> bool:
    """Whether a processor answers, and has memory for a model in single precision."""
    import torch

    from posgap.models.loading import load_config

    return not torch.cuda.is_available() and 4 * 1.2 * n_parameters(load_config(model)) < available_bytes()
