"""A mitigation: the longest documents stand last, where many models read best."""

from posgap.mitigations.mitigation import PromptMitigation, Settings


def longest_last(asked, settings):
    return [sorted(asked.documents, key=lambda document: len(document.text))]


LONGEST_LAST = PromptMitigation(
    name="longest-last",
    help="the longest documents stand last",
    level="prompt",
    source="of this package",
    cost="nothing",
    served_by=("endpoints",),
    settings=Settings,
    orders=longest_last,
    chosen=lambda responses: 0,
    tried=lambda: [Settings()],
)
