"""The model whose mitigations are compared, and how it answers unmodified and with each of them."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

from posgap.foundation.heavy_types import PreTrainedModel
from posgap.generation.backends import BACKENDS, open_generator
from posgap.generation.generator import Generator
from posgap.measurement.prompt_mitigator import PromptMitigator, Question
from posgap.measurement.settings import SweepSettings
from posgap.mitigations.in_force import apply_mitigation, load_model, remove_mitigation
from posgap.mitigations.mitigation import Mitigation, PromptMitigation, Settings
from posgap.mitigations.registry import MITIGATIONS
from posgap.mitigations.state import in_force
from posgap.tasks.examples import AnyExample
from posgap.tasks.placements import Placement
from posgap.tasks.prompts import PromptBuilder, TextPromptBuilder
from posgap.tasks.rag import order_of_retriever

BASE = "base"  # the unmodified model


@dataclass(frozen=True)
class ComparedModel:
    """A model with what makes its prompts: one `in_memory`, or one that only answers prompts, `elsewhere`.

    `settings` are its sweep's on all examples, without a mitigation. If examples have a retriever's order,
    `as_retrieved` asks them in it, and mitigations must gain over that.
    """

    settings: SweepSettings
    builder: TextPromptBuilder
    placements: Sequence[Placement]
    as_retrieved: Placement | None
    in_memory: PreTrainedModel | None
    elsewhere: Generator | None

    @classmethod
    def open_model(
        cls,
        settings: SweepSettings,
        builder: TextPromptBuilder,
        placements: Sequence[Placement],
        examples: Sequence[AnyExample],
    ) -> "ComparedModel":
        """Loads the model, or opens the generator that calls it elsewhere."""
        as_retrieved = order_of_retriever(builder.task, examples, placements[0].n_docs)
        access = settings.access
        is_here = BACKENDS[access.backend].in_memory
        in_memory = load_model(access.model, access.dtype) if is_here else None
        elsewhere = None if is_here else open_generator(access, builder)
        return cls(settings, builder, placements, as_retrieved, in_memory, elsewhere)

    @property
    def trial_placements(self) -> Sequence[Placement]:
        """The placements of trials: the retriever's order alone, if there is one."""
        return [self.as_retrieved] if self.as_retrieved else self.placements

    @property
    def sweeps_per_trial(self) -> int:
        """Returns a sweep's prompts as a multiple of a trial's: at all placements, and in the retriever's order."""
        return len(self.placements) + 1 if self.as_retrieved else 1

    @property
    def middle(self) -> Placement:
        """The placement in the middle."""
        return self.placements[len(self.placements) // 2]

    def count_calls(self, name: str, settings: Settings, example: AnyExample) -> int:
        """Returns how many prompts an answer takes."""
        mitigated = self.prompt_mitigator(name, settings)
        return len(mitigated.build_variants(Question(example, self.placements[0])).prompts) if mitigated else 1

    def why_not(self, mitigation: Mitigation) -> str:
        """Returns why a mitigation cannot be tried with this backend or these examples; empty if it can."""
        if mitigation.of_model and self.in_memory is None:
            return f"changes the model itself, and backend {self.settings.access.backend} only takes prompts"
        if isinstance(mitigation, PromptMitigation) and mitigation.needs_ranks and not self.as_retrieved:
            return "goes by the order of a retriever, which these examples do not have"
        return ""

    def prompt_mitigator(self, name: str, settings: Settings | None) -> PromptMitigator | None:
        """Returns the prompt mitigator of a mitigation of prompts; None for others."""
        if name == BASE or MITIGATIONS[name].of_model:
            return None
        assert settings is not None
        seed = self.settings.access.seed
        return PromptMitigator(self.builder, cast(PromptMitigation, MITIGATIONS[name]), settings, seed)

    @contextmanager
    def with_mitigation(self, name: str, settings: Settings | None) -> Iterator[Generator]:
        """Applies a mitigation, or none, within the block; yields the generator."""
        if self.elsewhere is not None:
            yield self.elsewhere
            return
        from posgap.generation.transformers import TransformersGenerator  # torch, which endpoints do without

        assert self.in_memory is not None
        undo = self._put_in_force(self.in_memory, name, settings)
        try:
            tokenizer = cast(PromptBuilder, self.builder).tokenizer
            yield TransformersGenerator(self.in_memory, tokenizer, self.settings.access.batch_tokens, pack=True)
        finally:
            undo()

    def _put_in_force(self, model: PreTrainedModel, name: str, settings: Settings | None) -> Callable[[], None]:
        """Applies a model mitigation, and returns a function that restores its earlier settings, if any."""
        if name == BASE or not MITIGATIONS[name].of_model:
            return lambda: None
        assert settings is not None
        before = in_force(model).get(name)
        apply_mitigation(model, name, settings)
        return lambda: remove_mitigation(model, name) if before is None else apply_mitigation(model, name, before)
