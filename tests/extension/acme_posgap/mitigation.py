"""A mitigation: the longest documents stand last, where many models read best."""

from posgap.mitigations.mitigation import PromptMitigation, Settings


class LongestLast(PromptMitigation):
    name = "longest-last"
    help = "the longest documents stand last"
    level = "prompt"
    source = "of this package"
    cost = "nothing"
    served_by = ("endpoints",)
    settings = Settings

    def order_documents(self, given, settings):
        return [sorted(given.documents, key=lambda document: len(document.text))]


LONGEST_LAST = LongestLast()
