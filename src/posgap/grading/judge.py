"""Asks a judge about responses, in both orders, and reads its answers."""

from collections import Counter
from collections.abc import Sequence

from posgap.foundation.errors import PosgapError, shorten
from posgap.foundation.files import digest_of, work_folder
from posgap.generation.backends import BACKENDS, OPENAI, TRANSFORMERS, Backend, BackendConfig, open_generator
from posgap.generation.generator import Completion, Generator, Sampling
from posgap.generation.served import EndpointGenerator, EndpointIdentity
from posgap.grading.prompt import JudgedResponse, judge_prompt, own_prompt
from posgap.measurement.config import GradeConfig
from posgap.measurement.gradings import Judgement, Verdict
from posgap.measurement.resumption import stream_missing
from posgap.measurement.unfinished import Unfinished
from posgap.storage.inputs import source
from posgap.tasks.prompts import Prompt, PromptBuilder

_WORDS: dict[str, Verdict] = {"CORRECT": "correct", "INCORRECT": "incorrect"}


class _JudgeBackendConfig(*BACKENDS.bases(), BackendConfig):  # type: ignore[misc]  # registered choices' parameters
    """How a backend is asked for judgements."""


def _judge_backend(config: GradeConfig) -> tuple[_JudgeBackendConfig, Backend]:
    """How the judge of a config is asked, and by which backend."""
    backend = OPENAI if config.judge_url else TRANSFORMERS
    shared = {
        name: getattr(config, name) for name in GradeConfig.model_fields if name in _JudgeBackendConfig.model_fields
    }
    # Of a task that asks a chat as it is, and has a base model end with the first line.
    as_swept = {"model": config.judge, "base_url": config.judge_url, "backend": backend.name, "task": "qa"}
    return _JudgeBackendConfig(**shared | as_swept), backend


def require_judge(config: GradeConfig) -> None:
    """Raises `PosgapError` where there is no such judge: no model of this name on this machine, or no answer of its
    endpoint to a question of a word. It is asked before the work that the judge is to judge."""
    asked, backend = _judge_backend(config)
    try:
        source(config.judge, not backend.local)
        generator = None if backend.local else open_generator(asked, backend.builder(asked))
        if isinstance(generator, EndpointGenerator):
            generator.require_same()
    except PosgapError as error:
        raise PosgapError(f"judge: {error}") from None


class Judge:
    """The judge that a config names, and what it has said so far, which is kept beside the output as it comes.

    The same response to the same question is judged once. `asked` is all that its judgements depend on beside that.
    """

    def __init__(self, config: GradeConfig, digests: dict[str, str]):
        self.name, self.prompt = config.judge, config.judge_prompt or own_prompt()
        self.config, backend = _judge_backend(config)
        self.builder = backend.builder(self.config)
        self.asked = {
            "prompt": digest_of(self.prompt),
            "endpoint": "" if backend.local else config.endpoint,
            "template": self.builder.template,
            "max_new_tokens": config.max_new_tokens,
            "max_thinking_tokens": config.max_thinking_tokens,
            "template_args": config.template_args,
            "body": config.redacted_dump()["body"],
        }
        identity = {"judge": config.judge, "url": config.judge_url, "seed": config.seed, **self.asked, **digests}
        self.kept = Unfinished(work_folder(config.out), identity)
        self._numbers: dict[JudgedResponse, int] = {}
        self._generator: Generator | None = None

    def judge(self, responses: Sequence[JudgedResponse], what: str) -> list[Judgement]:
        """The judgement of each; those that were judged before are not asked about again."""
        for judged in responses:
            self._numbers.setdefault(judged, len(self._numbers))
        missing: dict[int, list[int]] = {}
        for number in dict.fromkeys(self._numbers[judged] for judged in responses):
            orders = [order for order in (0, 1) if (number, order) not in self.kept.completions]
            if orders:
                missing[number] = orders
        if missing:
            self._generator = self._generator or open_generator(self.config, self.builder)
            sampling, by_number = Sampling.for_builder(self.builder, seed=self.config.seed), list(self._numbers)
            for _ in stream_missing(
                self._generator,
                self.kept,
                missing,
                lambda number, order: self._make_prompt(by_number[number], bool(order)),
                sampling,
                what,
            ):
                pass
        judgements = []
        for judged in responses:
            reference_first, response_first = self._answers(judged)
            judgements.append(Judgement(read_verdict(reference_first), read_verdict(response_first)))
        return judgements

    def _answers(self, judged: JudgedResponse) -> tuple[Completion, Completion]:
        """Returns what the judge said with the reference answers first, and with the response first."""
        number = self._numbers[judged]
        return self.kept.completions[number, 0], self.kept.completions[number, 1]

    @property
    def served(self) -> EndpointIdentity | None:
        """What the judge's endpoint has said of itself; None of a judge on this machine."""
        return None if BACKENDS[self.config.backend].local else self.kept.served

    def _make_prompt(self, judged: JudgedResponse, response_first: bool) -> Prompt:
        text = judge_prompt(self.prompt, judged, response_first)
        if not isinstance(self.builder, PromptBuilder):
            return Prompt(text)
        ids = self.builder.token_ids(text)
        longest = self.builder.max_new_tokens + self.builder.max_thinking_tokens
        if len(ids) + longest > self.builder.context:
            raise PosgapError(
                f"{self.name}: the prompt about {shorten(repr(judged.question))} has {len(ids)} tokens, which with "
                f"{longest} new ones exceed the judge's context of {self.builder.context}; take another judge"
            )
        return Prompt(text, ids)

    def complaint(self, judged: JudgedResponse) -> str:
        """What the judge said instead of a judgement, or why it said nothing; empty where it judged both times."""
        unread = [answer for answer in self._answers(judged) if read_verdict(answer) == "unreadable"]
        return _instead(unread[0]) if unread else ""

    def most_frequent_complaint(self) -> str:
        """What the judge said most often instead of a judgement."""
        unread = [each for each in self.kept.completions.values() if read_verdict(each) == "unreadable"]
        return Counter(map(_instead, unread)).most_common(1)[0][0] if unread else ""


def read_verdict(completion: Completion) -> Verdict:
    """What the judge's answer says: the single word CORRECT or INCORRECT, its thoughts apart, and nothing else.

    An answer that the limit of tokens cut off is no judgement, since it was to go on.
    """
    is_whole = completion.outcome == "answered" and not completion.cut
    return _WORDS.get(completion.text.strip(), "unreadable") if is_whole else "unreadable"


def _instead(completion: Completion) -> str:
    if completion.outcome != "answered":
        return f"{completion.outcome}: {completion.reason}" if completion.reason else completion.outcome
    return shorten(f"it answered {completion.text!r}")
