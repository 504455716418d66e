"""The report's page as a browser reads it."""

from html.parser import HTMLParser

from written_sweeps import ASKED

from posgap.measurement.sweeps import Sweep


def sweep_of(placements: list[list[int]], accuracy: list[float], **changes) -> Sweep:
    worst = min(range(len(accuracy)), key=accuracy.__getitem__)
    pairs = len(placements[0]) > 1
    return Sweep(
        **{
            **{"task": "kv", "model": "some/model", "label": "<base>", "scaling": None, "metric": "sub_em"},
            **{"n_docs": 20, "n_examples": 50, "placements": placements, "accuracy": accuracy},
            **{"ci95": [(max(0, a - 5), min(100, a + 5)) for a in accuracy], "mean": 60.0, "mean_ci95": (55, 65)},
            **{"gap": max(accuracy) - min(accuracy), "gap_ci95": (30.0, 50.0), "gap_noise": 9.5},
            "flatness": {"p": 1e-6},
            "worst": {"placement": placements[worst], "accuracy": accuracy[worst]},
            "categories": ["connected" if b == a + 1 else "reversed" for a, b in placements] if pairs else [],
            "by_category": {"connected": {"accuracy": 70.0, "ci95": (60, 80), "gap": 1.0}} if pairs else {},
            **{"examples_digest": "e" * 64, "model_digest": "", "prompt_digest": "f" * 64, "asked": ASKED},
            **{"settings": {"seed": 0, "positions": ["1", "<b>"]}, **changes},
        }
    )


SINGLE = sweep_of([[1], [10], [20]], [90.0, 50.0, 80.0])


class Reader(HTMLParser):
    """Checks that tags are closed in order, and keeps attributes and text."""

    VOID = ("meta", "line", "circle", "polyline", "path", "br")

    def __init__(self, text: str):
        super().__init__()
        self.open, self.attributes, self.text = [], [], ""
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.attributes += [(tag, *pair) for pair in attrs]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data
