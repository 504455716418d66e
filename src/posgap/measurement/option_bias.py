"""Finds which slots a model chooses whatever stands there, for tasks whose responses name a slot."""

from collections.abc import Iterable, Sequence
from itertools import product

import numpy as np

from posgap.foundation.files import Record
from posgap.measurement import statistics
from posgap.measurement.sample import Sample
from posgap.measurement.statistics import Points, ends
from posgap.tasks.examples import AnyExample, Document
from posgap.tasks.placements import Placement
from posgap.tasks.task import Task


class OptionBias(Record):
    """Which slots the responses name, in percent of all prompts, and how often the order does not matter.

    `shares`, with 95 % intervals, say how many responses name each of the `slots`, and `none` how many name no slot.
    `consistency` is the share of examples with the same item chosen at every placement.
    """

    slots: list[str]
    shares: list[Points]
    shares_ci95: list[tuple[Points, Points]]
    none: Points
    consistency: Points
    consistency_ci95: tuple[Points, Points]

    @property
    def favourite(self) -> int:
        """Which slot is named most often, by its index; the first of equals."""
        return self.shares.index(max(self.shares))

    @property
    def preference(self) -> float:
        """How much more often the favoured slot is named than without preference, in points."""
        return max(self.shares) - sum(self.shares) / len(self.shares)

    @property
    def preference_text(self) -> str:
        """The figures in words."""
        said = (
            f"{self.slots[self.favourite]} is chosen most often, in {self.shares[self.favourite]:.1f} % "
            f"({ends(self.shares_ci95[self.favourite])}) of the prompts; without a preference it would be "
            f"{100 / len(self.slots):.1f} %. The same item is chosen in every order in {self.consistency:.1f} % "
            f"({ends(self.consistency_ci95)}) of the examples"
        )
        return said + (f"; {self.none:.1f} % of the responses name no item." if self.none else ".")


def measure_option_bias(
    task: Task, examples: Sequence[AnyExample], placements: Sequence[Placement], responses: Iterable[str], shuffle: int
) -> OptionBias:
    """The choices of the responses to these examples at these placements, an example's one after the other, each with
    as many samples as the others; documents are ordered by the seed `shuffle`."""
    said = list(responses)
    prompts = list(product(examples, placements))
    samples = len(said) // len(prompts)
    n_docs = placements[0].n_docs
    orders = [task.slots.arrange(example, placement, shuffle) for example, placement in prompts]
    slots = np.array([task.chosen_slot(said[i], orders[i // samples]) for i in range(len(said))])
    items = [orders[i // samples][slot - 1] if slot else None for i, slot in enumerate(slots)]
    slots = slots.reshape(len(examples), len(placements), samples)
    by_example = len(placements) * samples
    shares = np.stack([(slots == slot).mean(axis=(1, 2)) for slot in range(n_docs + 1)], axis=1)  # [E, 1 + slots]
    sample = Sample.from_examples(examples)
    shares = sample.average(shares)
    chosen = np.array([_is_one(items[at : at + by_example]) for at in range(0, len(items), by_example)])
    same = sample.average(chosen)
    intervals = [statistics.mean_interval(share).tolist() for share in shares.T]
    return OptionBias(
        slots=list(task.slot_names[:n_docs]),
        shares=(100 * shares[:, 1:].mean(axis=0)).tolist(),
        shares_ci95=intervals[1:],
        none=float(100 * shares[:, 0].mean()),
        consistency=float(100 * same.mean()),
        consistency_ci95=statistics.mean_interval(same).tolist(),
    )


def same_item(task: Task, rows: Iterable[tuple[str, int, str]], n_docs: int) -> np.ndarray:
    """Whether the same item is chosen in every order, [E], by the letters of responses: of (example, position of the
    item that matters, response). Without the examples an item that is named by its text is none."""
    chosen: dict[str, set[int | None]] = {}
    for example, position, response in rows:
        slot = task.chosen_slot(response, [Document(title="", text="")] * n_docs)
        chosen.setdefault(example, set()).add((slot - position) % n_docs if slot else None)
    return np.array([_is_one(items) for items in chosen.values()], dtype=float)


def _is_one(items: Iterable[object]) -> bool:
    """Whether all of these are one item, and none is None."""
    different = set(items)
    return len(different) == 1 and None not in different
