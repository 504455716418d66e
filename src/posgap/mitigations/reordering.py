"""Mitigations that change the order of a prompt's documents."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from posgap.mitigations.mitigation import Asked, PromptMitigation, Settings

if TYPE_CHECKING:
    from posgap.tasks.examples import Document


class NoSettings(Settings):
    """Nothing can be chosen."""


def _reversed(asked: Asked, settings: NoSettings) -> Sequence[Sequence["Document"]]:
    return [list(reversed(asked.documents))]


REVERSED = PromptMitigation(
    name="reversed",
    help="the documents in the reverse order, the last one first",
    level="prompt",
    source="a baseline: what stood last stands first",
    cost="nothing",
    served_by=("transformers", "vllm", "endpoints"),
    settings=NoSettings,
    orders=_reversed,
    chosen=lambda responses: 0,
    tried=lambda: [NoSettings()],
)
