"""Asks questions through a prompt mitigation: one example at one placement becomes several prompts, and one of their
responses becomes the answer."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from posgap.foundation.errors import PosgapError
from posgap.generation.generator import Completion, Generator, Sampling, Usage
from posgap.measurement.sweeps import AppliedMitigation
from posgap.mitigations.mitigation import PromptMitigation, ReorderInput, Settings
from posgap.mitigations.registry import PROMPT_MITIGATIONS
from posgap.tasks.examples import AnyExample, Document, RankedExample
from posgap.tasks.placements import Placement
from posgap.tasks.prompts import Prompt, TextPromptBuilder
from posgap.tasks.task import BASELINES


class Question(NamedTuple):
    """An example at a placement, and which of several responses to it is asked for."""

    example: AnyExample
    placement: Placement
    sample: int = 0


class PromptVariants(NamedTuple):
    """A question's prompts, each with its documents in an order; `given` is the placement's own. A baseline's prompt
    has no documents here."""

    prompts: Sequence[Prompt]
    orders: Sequence[Sequence[Document]]
    given: Sequence[Document]


class PromptMitigator:
    """Asks as a mitigation of prompts requires; `settings` are the mitigation's. Baselines that are an order of
    documents, such as the retriever's, use the mitigation too; others do not.

    `seed` seeds everything that a mitigation draws.
    """

    def __init__(self, builder: TextPromptBuilder, mitigation: PromptMitigation, settings: Settings, seed: int):
        self.builder = builder
        self.mitigation = mitigation
        self.settings = settings
        self.seed = seed

    @classmethod
    def for_name(
        cls, name: str, settings: Mapping[str, Any], seed: int, builder: TextPromptBuilder
    ) -> "PromptMitigator | None":
        """The mitigation of that name; None if the name is empty."""
        if not name:
            return None
        mitigation = PROMPT_MITIGATIONS[name]
        return cls(builder, mitigation, mitigation.settings(**settings), seed)

    @property
    def applied_mitigation(self) -> AppliedMitigation:
        """The mitigation's entry in a sweep's file."""
        return AppliedMitigation(name=self.mitigation.name, settings=self.settings.model_dump(mode="json"))

    def is_order_free(self, examples: Sequence[AnyExample], placements: Sequence[Placement]) -> bool:
        """Whether each example gets the same prompts at all placements, so that a gap of 0 is no merit of the
        mitigation. If several documents are equally relevant they stay as they were given, and then it need not be so.
        """
        if not self.mitigation.order_free:
            return False
        for example in examples:
            first, *others = [self._orders(example, self.builder.documents(example, at)) for at in placements]
            if any(orders != first for orders in others):
                return False
        return True

    def build_variants(self, question: Question) -> PromptVariants:
        """The prompts of a question."""
        example, placement, sample = question
        if placement.baseline and not BASELINES[placement.baseline].is_order:
            return PromptVariants([self.builder.prompt(example, placement)._replace(sample=sample)], [], [])
        if self.mitigation.needs_ranks and not isinstance(example, RankedExample):
            raise PosgapError(
                f"mitigation {self.mitigation.name}: example {example.id} has no retriever's order; use the task "
                "rag with a retrieval log"
            )

        asked = example.model_copy(update={"question": self.mitigation.word_question(example.question)})

        def prompt(documents: Sequence[Document]) -> Prompt:
            return self.builder.of_documents(asked, placement, documents)._replace(sample=sample)

        given = self.builder.documents(example, placement)
        orders = self._orders(example, given)
        return PromptVariants(list(map(prompt, orders)), orders, given)

    def _orders(self, example: AnyExample, given: Sequence[Document]) -> Sequence[Sequence[Document]]:
        return self.mitigation.order_documents(ReorderInput(example, given, self.seed), self.settings)

    def generate(
        self, generator: Generator, groups: Iterable[Sequence[Question]], sampling: Sampling
    ) -> Iterator[tuple[int, int, Completion]]:
        """Yields (index of a group, index of a question within it, its answer), as `Generator.generate` does.

        If several questions of a group share a prompt, as when documents are put in one order from all placements, it
        is sent once at temperature 0.
        """
        under_way: dict[int, list[list[_Part]]] = {}

        def list_prompts() -> Iterator[list[Prompt]]:
            for index, group in enumerate(groups):
                prompts, under_way[index] = self._share_prompts(group, is_greedy=not sampling.temperature)
                yield prompts

        for index, at, completion in generator.generate(list_prompts(), sampling):
            for part in under_way[index][at]:
                part.completions[part.variant] = completion
                count = len(part.asked.prompts)
                if len(part.completions) == count:
                    completions = [part.completions[variant] for variant in range(count)]
                    yield index, part.number, self.reduce(part.asked, completions)

    def _share_prompts(self, group: Sequence[Question], is_greedy: bool) -> tuple[list[Prompt], list[list["_Part"]]]:
        """Returns the prompts of these questions, each once if it would be answered alike (`is_greedy`), and for each
        prompt the parts of questions that its answer serves."""
        parts: dict[Any, list[_Part]] = {}
        prompts = []
        for number, question in enumerate(group):
            asked = self.build_variants(question)
            completions: dict[int, Completion] = {}
            for variant, prompt in enumerate(asked.prompts):
                key = (prompt.text, prompt.sample) if is_greedy else (number, variant)
                if key not in parts:
                    prompts.append(prompt)
                parts.setdefault(key, []).append(_Part(asked, completions, number, variant))
        return prompts, list(parts.values())

    def reduce(self, asked: PromptVariants, completions: Sequence[Completion]) -> Completion:
        """Returns the answer to a question from its prompts' completions: the mitigation chooses among those that are
        answers. The answer has the usage of all of them. If one failed, returns that one, so that it is retried; if
        none is an answer, the first.

        If a response names a slot, the answer names the slot in which that item was given.
        """
        if not asked.orders:
            return completions[0]
        spent = _together([completion.usage for completion in completions])
        for completion in completions:
            if completion.outcome == "failed":
                return completion._replace(usage=spent)
        said = [
            self._as_given(completion, asked.given, order)
            for completion, order in zip(completions, asked.orders, strict=True)
            if completion.outcome == "answered"
        ]
        if not said:
            return completions[0]._replace(usage=spent)
        task = self.builder.task
        texts = [each.text if task.slot_names else task.extract(each.text) for each in said]
        chosen = said[self.mitigation.choose_response(texts)]
        return chosen._replace(text=self.mitigation.read_response(chosen.text), usage=spent)

    def _as_given(self, completion: Completion, given: Sequence[Document], order: Sequence[Document]) -> Completion:
        task = self.builder.task
        slot = task.chosen_slot(completion.text, order) if task.slot_names else 0
        if not slot or list(order) == list(given):
            return completion
        name = task.slot_names[list(given).index(order[slot - 1])]
        return completion._replace(text=task.target.format(answer=name), token_ids=[])


class _Part(NamedTuple):
    """The role of a prompt: a variant of the question with this number in its group. All parts of a question share its
    completions so far, by the variants' numbers."""

    asked: PromptVariants
    completions: dict[int, Completion]
    number: int
    variant: int


def _together(usages: Sequence[Usage | None]) -> Usage | None:
    """The sum of these; None if nothing is known."""
    known = [usage for usage in usages if usage]
    if not known:
        return None

    def total(name: str) -> Any:
        counts = [getattr(usage, name) for usage in known if getattr(usage, name) is not None]
        return sum(counts) if counts else None

    return Usage(total("prompt"), total("completion"), total("thinking"), total("seconds"), len(usages))
