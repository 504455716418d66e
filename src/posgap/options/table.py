"""All verbs by name, each with the file of its options, which is imported when it is asked for.

So `posgap gate --help` reads the options of `gate` alone.
"""

import importlib
from collections.abc import Iterator, Mapping

from posgap.options.base import Config
from posgap.options.verb import Verb

# The verbs in `posgap --help`, with few words; the rest is under `--help-all`, verbs that only pipelines run last.
FIRST = {
    "sweep": "measure accuracy at every position, and the gap",
    "check": "sweep a model and judge it, for CI",
    "compare": "say how sweeps differ, with intervals",
    "mitigate": "find what closes the gap without training",
    "distill": "train the gap away (Pos2Distill)",
    "gate": "decide whether a model may be released",
    "promote": "register a model that was admitted",
    "rollout": "explain why a model is biased",
    "pipeline": "run it all on Kubeflow, on a schedule if wanted",
}
# Each heading of `posgap --help-all` with its verbs, by what is typed for them.
SECTIONS = {
    "Measure": (
        *("data make", "data import", "data version", "validate", "plan sweep", "plan gate", "plan distill"),
        *("sweep", "view", "compare", "check"),
    ),
    "Close the gap by training": ("teacher", "distill"),
    "Close the gap without training": ("mitigate", "apply", "scale search"),
    "Explain": ("rollout predict", "rollout measure", "rollout experiment"),
    "Operate": (
        *("gate", "policy", "promote", "approve", "rollback"),
        *("pipeline compile", "pipeline run", "pipeline submit", "pipeline schedule", "verify"),
    ),
    "Set up": ("demo", "doctor"),
    "Steps of pipelines": ("preflight", "merge", "train-job", "champion", "watch", "report"),
}
GROUPS = {
    "data": "Fetch, import or make examples, and say or pick which version of them is taken.",
    "plan": "How many examples, how much memory and how many hours it takes.",
    "scale": "Search RoPE factors for a model, which `posgap apply` puts in force.",
    "rollout": "Why a model is biased: what of each position reaches the last token.",
    "pipeline": "The Kubeflow pipeline: compile, run here or on a cluster, schedule, check.",
}


def file_name(words: str) -> str:
    """Returns the name of a verb's files, its function and its KFP component: `scale_search` of `scale search`."""
    return words.replace(" ", "_").replace("-", "_")


class _Verbs(Mapping[str, Verb]):
    """The verbs by what is typed for them."""

    typed = tuple(words for verbs in SECTIONS.values() for words in verbs)

    def __getitem__(self, words: str) -> Verb:
        if words not in self.typed:
            raise KeyError(words)
        return importlib.import_module(f"posgap.options.{file_name(words)}").VERB

    def __iter__(self) -> Iterator[str]:
        return iter(self.typed)

    def __len__(self) -> int:
        return len(self.typed)


VERBS = _Verbs()


def stage_config(name: str) -> type[Config]:
    """Returns the options of the stage with the files `name`."""
    verb = importlib.import_module(f"posgap.options.{name}").VERB
    return verb.stage_config or verb.config


def work_of(words: str) -> str:
    """Returns the place of a verb's recipe, as "module:function"."""
    name = file_name(words)
    return f"posgap.verbs.{name}:{name}"
