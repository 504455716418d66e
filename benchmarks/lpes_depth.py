"""LPES at depth: which curve finds more with as many forward passes, on the tiny model of eight layers.

    python benchmarks/lpes_depth.py [--quick] [--out runs/lpes-depth]

Every search is one line of `searches.jsonl` under `--out`, with all that it tried and found; one that is there is not
run again, so that the script may be stopped at any time and goes on where it was. `--report` runs none: it writes the
section `lpes-depth` of docs/results.md and docs/lpes-depth.png from what is complete. The models are those of
`python tests/tiny_recipes.py deep --seed 0` (1, 2), made where posgap's cache does not have them.
`--quick` takes one model, one length and a few candidates, and writes nothing into docs/.
"""

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from datetime import date
from itertools import product
from pathlib import Path
from statistics import mean

import numpy as np
import torch
from alignment import interval, shown
from report import ROOT, write_section

from posgap.demo import tiny_model
from posgap.foundation.tables import markdown
from posgap.measurement.statistics import paired_difference
from posgap.mitigations.curves import Candidate, Curve
from posgap.scaling.genetic import Genetic
from posgap.mitigations.in_force import apply, load_model, remove
from posgap.models.layer_scaling import layer_scaling
from posgap.scaling.fitness import TeacherForced
from posgap.scaling.questions import Question
from posgap.tasks.placements import spaced_positions

sys.path.append(str(ROOT / "tests"))
import tiny_recipes

CURVES = {
    "linear": Curve("linear"),
    "step, 4 runs": Curve("step", {"order": 3}),
    "Bezier, 3 points": Curve("bezier", {"order": 2}),
    "Bezier, 4 points": Curve("bezier", {"order": 3}),
    "Bezier, 5 points": Curve("bezier", {"order": 4}),
    "free": Curve("free"),
    "Bezier, 4 points, CMA-ES": Curve("bezier", {"order": 3}),
}
BEZIER = "Bezier, 4 points"
METHODS = [BEZIER, "free", "uniform", "linear", "step, 4 runs", "yarn", *CURVES]
METHODS = list(dict.fromkeys(METHODS))
POPULATION, TRIED, PLACES = 10, 40, 7
LISTS, HELD_OUT = 10, 60  # lists of records that a search is scored on, and that its best is
SIZES, SIZED = (5, 30, 60), (BEZIER, "free", "uniform")
# Models 1 and 2 answer 98 % and more at n = 20, and have nothing to gain there.
CELLS = [(40, 0), (40, 1), (40, 2), (30, 0), (20, 0), (30, 1), (30, 2)]
YARN = 4.0  # the greatest factor tried; that of the curves is 2
ROWS = 40  # prompts in a batch
TASKS = ("near keys", "after five others")
HELD_OUT_SEED = 10_000
Lists = torch.Tensor


class CMAES:
    """CMA-ES from the library `cma` (Hansen 2016; `pip install cma`), for comparison with the genetic algorithm.

    It starts in the middle between the bounds, with a quarter of the distance between them as standard deviation.
    """

    def __init__(self, curve: Curve, n_layers: int, population: int, seed: int):
        import cma

        rng = np.random.default_rng(seed)
        self.curve = curve
        options = {
            **{"bounds": [curve.low, curve.high], "popsize": population, "verbose": -9},
            **{"seed": np.nan, "randn": lambda *shape: rng.standard_normal(shape)},
        }
        middle, width = (curve.low + curve.high) / 2, curve.high - curve.low
        start = np.full(curve.n_points(n_layers), middle)
        self.cma = cma.CMAEvolutionStrategy(start, width / 4, options)
        self.proposed: list[np.ndarray] = []

    def ask(self) -> list[np.ndarray]:
        self.proposed = self.cma.ask()
        return [self.curve.constrain(points) for points in self.proposed]

    def tell(self, points: Sequence[np.ndarray], fitness: Sequence[float]) -> None:
        # Each fitness belongs to the unconstrained point that CMA-ES itself proposed.
        self.cma.tell(self.proposed, [-value for value in fitness])


def records(n: int, count: int, seed: int, task: str = "") -> Lists:
    """`count` prompts of n random records, [count, T], each followed by the questions about all of its records.

    With "near keys" the first digit of a key is one of as few as n records need, so that a wrong record often differs
    from the right one in one digit.
    """
    rng = torch.Generator().manual_seed(seed)
    ids, _ = tiny_model.draw_batch(rng, count, n, None)
    if task == "near keys":
        digits = tiny_model.tokenizer().convert_tokens_to_ids([f"{d:x}" for d in range(16)])
        head, few = 4 + 4 * n - 1, math.ceil(n / 16)
        for row in ids:
            first = torch.randperm(16, generator=rng)[:few]
            keys = torch.randperm(16 * few, generator=rng)[:n]
            near = [(digits[first[k // 16]], digits[k % 16]) for k in keys.tolist()]
            old = [tuple(row[4 + 4 * i : 6 + 4 * i].tolist()) for i in range(n)]
            new = dict(zip(old, near))
            for i in range(n):
                row[4 + 4 * i : 6 + 4 * i] = torch.tensor(new[old[i]])
                at = head + 5 * i + 1
                row[at : at + 2] = torch.tensor(new[tuple(row[at : at + 2].tolist())])
    return ids


class Asked:
    """Lists of records, and the question about the record at each of `PLACES` places of each, [E][P].

    The records of a list stand where they stand; each place has a question of its own. So a list is read once for all.
    """

    def __init__(self, n: int, count: int, seed: int, task: str = ""):
        ids, head = records(n, count, seed, task), 4 + 4 * n - 1
        self.places = [int(place) for place in spaced_positions(n, PLACES)]
        self.prompts, self.turns = [], []
        for row in ids.tolist():
            turns = [row[head + 5 * i : head + 5 * i + 5] for i in range(n)]
            about = {tuple(turn[1:3]): turn for turn in turns}
            keys = [tuple(row[4 + 4 * i : 6 + 4 * i]) for i in range(n)]
            chosen = [about[keys[place - 1]] for place in self.places]
            others = [turn for turn in turns if turn not in chosen][:5] if task == "after five others" else []
            self.prompts.append(row[:head] + [token for turn in others for token in turn])
            self.turns.append(chosen)

    def questions(self) -> list[list[Question]]:
        return [[Question(p + t[:3], t[3:]) for t in turns] for p, turns in zip(self.prompts, self.turns)]


class Answers:
    """`TeacherForced` for questions about one list: they stand behind it side by side, and none sees another.

    Finds right what `TeacherForced` finds right (`agrees`), in about half the time.
    """

    def __init__(self, model, asked: Asked):
        self.model, self.scaling, self.asked = model, layer_scaling(model), asked
        before, places = len(asked.prompts[0]), len(asked.turns[0])
        own = torch.arange(4 * places) // 4
        seen = torch.ones(before + 4 * places, before + 4 * places).tril().bool()
        seen[before:, before:] &= own[:, None] == own[None]
        self.mask = torch.where(seen, 0.0, torch.finfo(torch.float32).min)[None, None]
        self.positions = torch.cat([torch.arange(before), before + torch.arange(4).repeat(places)])[None]
        reads = [p + [t for turn in turns for t in turn[:4]] for p, turns in zip(asked.prompts, asked.turns)]
        self.ids = torch.tensor(reads)
        self.right = torch.tensor([[turn[3:] for turn in turns] for turns in asked.turns])  # [E, P, 2]

    @torch.inference_mode()
    def correct(self, candidates: Sequence[Candidate]) -> np.ndarray:
        """Which questions each candidate answers rightly: [C, E, P]."""
        count = len(self.ids)
        factors, found = torch.tensor(candidates, dtype=torch.float32), []
        for rows in torch.arange(len(candidates) * count).split(ROWS):
            ids, right = self.ids[rows % count], self.right[rows % count]
            with self.scaling.rows(factors[rows // count].T):
                logits = self.model(
                    input_ids=ids,
                    attention_mask=self.mask.expand(len(rows), -1, -1, -1),
                    position_ids=self.positions.expand(len(rows), -1),
                    use_cache=False,
                    logits_to_keep=4 * right.shape[1],
                ).logits
            said = logits.argmax(-1).view(len(rows), -1, 4)[:, :, 2:]  # after the key, and after the value
            found.append((said == right).all(2))
        return torch.cat(found).view(len(candidates), count, -1).numpy()


def agrees(model, n: int, task: str = "") -> bool:
    """Whether the questions side by side are answered as `TeacherForced` has them answered, some right, some wrong."""
    asked = Asked(n, 6, 99, task)
    rng = np.random.default_rng(0)
    candidates = [tuple(1 + rng.random(len(model.model.layers))) for _ in range(2)]
    forced = TeacherForced(model, asked.questions(), 0, 4096).correct(candidates)
    own = Answers(model, asked).correct(candidates)
    return bool((forced == own).all()) and 0 < own.mean() < 1


def searched(answers: Answers, method: str, seed: int, tried: int) -> tuple[list[dict], list[float]]:
    """The distinct settings that a method tries, in order, and the fitness of each: the mean accuracy in points."""
    n_layers = answers.scaling.n_layers
    one = (1.0,) * n_layers
    if method in ("uniform", "yarn"):
        most = YARN if method == "yarn" else 2.0
        grid = np.linspace(1, most, tried)
        # In an order in which every beginning is spread over the whole: that of van der Corput's sequence.
        order = sorted(range(tried), key=lambda i: f"{i:010b}"[::-1])
        factors = [float(grid[i]) for i in order]
        if method == "uniform":
            right = answers.correct([(f,) * n_layers for f in factors])
            return [{"factors": [f] * n_layers} for f in factors], (100 * right.mean((1, 2))).tolist()
        settings = [{"yarn": f} for f in factors]
        fitness = [100 * float(with_yarn(answers, f).mean()) for f in factors]
        return settings, fitness
    curve = CURVES[method]
    if method.endswith("CMA-ES"):
        strategy: Genetic | CMAES = CMAES(curve, n_layers, POPULATION, seed)
    else:
        strategy = Genetic(curve, n_layers, POPULATION, seed, mutation=0.2, mutation_rate=0.3)
    scores: dict[Candidate, float] = {}
    for _ in range(20 * tried):  # a strategy that has stopped finding anything new ends the search early
        points = strategy.ask()
        candidates = [curve.factors(p, n_layers) for p in points]
        new = [c for c in dict.fromkeys(candidates) if c not in scores][: tried - len(scores)]
        if new:
            scores |= dict(zip(new, (100 * answers.correct(new).mean((1, 2))).tolist()))
        if len(scores) == tried or any(c not in scores for c in candidates):
            break
        strategy.tell(points, [scores[c] for c in candidates])
    assert method.endswith("CMA-ES") or one in scores
    return [{"factors": list(c)} for c in scores], list(scores.values())


def with_yarn(answers: Answers, factor: float) -> np.ndarray:
    """[E, P] under transformers' own YaRN, from the length of a prompt of 20 records."""
    apply(answers.model, "yarn", {"factor": factor, "original_max_position_embeddings": 4 + 4 * 20 + 4})
    try:
        return answers.correct([(1.0,) * answers.scaling.n_layers])[0]
    finally:
        remove(answers.model, "yarn")


def judged(answers: Answers, setting: dict) -> np.ndarray:
    """[E, P] under one setting."""
    return with_yarn(answers, setting["yarn"]) if "yarn" in setting else answers.correct([tuple(setting["factors"])])[0]


class Log:
    """The lines of a JSON-lines file, by what they are of."""

    def __init__(self, path: Path):
        self.path, self.rows = path, {}
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_file():
            for line in path.read_text().splitlines():
                row = json.loads(line)
                self.rows[row["of"]] = row

    def once(self, of: str, make: Callable[[], dict]) -> dict:
        if of not in self.rows:
            started = time.process_time()
            row = {"of": of, **make()}
            row["cpu_seconds"] = round(time.process_time() - started, 2)
            with self.path.open("a") as file:
                file.write(json.dumps(row) + "\n")
            self.rows[of] = row
            print(of, row.get("best", row.get("mean", "")), f"{row['cpu_seconds']} s", file=sys.stderr, flush=True)
        return self.rows[of]


def name(n: int, model: int, method: str, seed: int, lists: int) -> str:
    return f"n={n} model={model} lists={lists} seed={seed} {method}"


class Bench:
    """The deep models, and what is known of them."""

    def __init__(self, log: Log, lists: int, tried: int, held_out: int):
        self.log, self.lists, self.tried, self.held_out, self.models = log, lists, tried, held_out, {}

    def model(self, seed: int):
        if seed not in self.models:
            self.models[seed] = load_model(str(tiny_recipes.kept("deep", seed)))
        return self.models[seed]

    def search(self, n: int, model: int, method: str, seed: int = 0, lists: int = 0) -> dict:
        """Searches on lists of its own (equal for all methods), and answers the held-out ones with the best."""
        lists = lists or self.lists

        def make() -> dict:
            asked = Asked(n, lists, 100 * (n + 1) + 10 * seed + model + (0 if lists == self.lists else lists * 10_007))
            settings, fitness = searched(Answers(self.model(model), asked), method, 1000 + seed, self.tried)
            best = settings[int(np.argmax(fitness))]
            right = judged(Answers(self.model(model), Asked(n, self.held_out, HELD_OUT_SEED + n)), best)
            return {
                "fitness": fitness,
                "best": best,
                "right": right.sum(1).tolist(),
                "by_place": right.mean(0).tolist(),
            }

        return self.log.once(name(n, model, method, seed, lists), make)

    def base(self, n: int, model: int) -> dict:
        def make() -> dict:
            right = judged(Answers(self.model(model), Asked(n, self.held_out, HELD_OUT_SEED + n)), self.one(model))
            return {"right": right.sum(1).tolist(), "by_place": right.mean(0).tolist()}

        return self.log.once(f"n={n} model={model} base", make)

    def one(self, model: int) -> dict:
        return {"factors": [1.0] * layer_scaling(self.model(model)).n_layers}

    def transfer(self, source: tuple[int, int], to: tuple[int, int], task: str = "") -> dict:
        """The right answers [E] of the Bezier curve of one cell on another, and of the model without it."""

        def make() -> dict:
            answers = Answers(self.model(to[1]), Asked(to[0], self.held_out, HELD_OUT_SEED + to[0], task))
            scaled = judged(answers, self.search(*source, BEZIER)["best"]).sum(1).tolist()
            base = judged(answers, self.one(to[1])).sum(1).tolist() if task else self.base(*to)["right"]
            return {"right": scaled, "base": base}

        return self.log.once(f"transfer {source} to {to} {task}", make)


def run(bench: Bench, seeds: int, cells: Sequence[tuple[int, int]] = CELLS, sized: Sequence[str] = SIZED) -> None:
    """All searches, the most telling first."""
    for n, model in cells[:1]:
        for task in ("", *TASKS):
            if not agrees(bench.model(model), n, task):
                raise SystemExit(f"questions side by side are not answered as TeacherForced has them: {task or 'kv'}")
    lengths, models = sorted({n for n, _ in cells}), sorted({model for _, model in cells})
    for seed in range(seeds):
        for source in cells:
            n, model = source
            bench.base(n, model)
            for method in METHODS:
                if seed == 0 or method not in ("uniform", "yarn"):
                    bench.search(n, model, method, seed)
            elsewhere = [(to, model) for to in lengths] + [(n, to) for to in models]
            for to in dict.fromkeys(elsewhere if seed == 0 else []):
                if to != source:
                    bench.transfer(source, to)
            for task in TASKS if seed == 0 else ():
                bench.transfer(source, source, task)
        for (n, model), size, method in product(cells if seed == 0 else (), SIZES, sized):
            if n == cells[0][0]:
                bench.search(n, model, method, 0, size)


class Found:
    """What a log of searches says, in points."""

    def __init__(self, log: Log):
        self.rows = log.rows
        self.seeds = sorted({int(of.split("seed=")[1].split()[0]) for of in self.rows if "seed=" in of})
        self.cells = [cell for cell in CELLS if all(name(*cell, m, 0, LISTS) in self.rows for m in METHODS)]

    def search(self, cell: tuple[int, int], method: str, seed: int = 0, lists: int = LISTS) -> dict | None:
        return self.rows.get(name(*cell, method, seed, lists))

    def searches(self, cell: tuple[int, int], method: str) -> list[dict]:
        """A search for each search seed; grids have one."""
        return [row for seed in self.seeds if (row := self.search(cell, method, seed))]

    def scores(self, row: dict, key: str = "right") -> np.ndarray:
        """The share of the questions about each held-out list that was answered rightly, [E]."""
        return np.array(row[key]) / PLACES

    def base(self, cell: tuple[int, int]) -> np.ndarray:
        return self.scores(self.rows[f"n={cell[0]} model={cell[1]} base"])

    def gained(self, cell: tuple[int, int], method: str) -> tuple[float, tuple[float, float]]:
        """What the held-out mean gains, mean over search seeds, with its 95 % interval over the held-out lists."""
        return paired_difference(np.mean([*map(self.scores, self.searches(cell, method))], axis=0), self.base(cell))

    def curve(self, cell: tuple[int, int], method: str) -> np.ndarray:
        """[S, tried] for S search seeds: by how much the best fitness so far exceeds that of the unscaled model on
        the same lists, which is the first that the genetic algorithm tries."""
        curves = []
        for seed in self.seeds:
            if row := self.search(cell, method, seed):
                best = np.maximum.accumulate(row["fitness"])
                padded = np.pad(best, (0, TRIED - len(best)), mode="edge")  # a search that found nothing new any more
                curves.append(padded - self.search(cell, BEZIER, seed)["fitness"][0])
        return np.array(curves)


def gains_table(found: Found, n: int) -> str:
    """A row a method: how far the fitness rose, and what that gains on held-out lists, by model."""
    cells = [cell for cell in found.cells if cell[0] == n]
    lines = []
    for method in METHODS:
        rise = np.mean([found.curve(cell, method).mean(0) for cell in cells], axis=0)
        gained = [found.gained(cell, method) for cell in cells]
        own = [f"{gain:+.1f} ({low:+.1f} to {high:+.1f})" for gain, (low, high) in gained]
        lines.append(
            [method, *(f"{rise[k - 1]:+.1f}" for k in (10, 20, 40)), *own, f"{mean(gain for gain, _ in gained):+.1f}"]
        )
    head = [f"model {model} ({100 * found.base((n, model)).mean():.1f})" for _, model in cells]
    return markdown(["method", "fitness, 10", "20", "40", *head, "held out"], lines)


def against_bezier(found: Found) -> dict[str, list[tuple[float, float, float]]]:
    """What Bezier with four points gains more than each other method, by cell: in held-out accuracy, in the fitness
    after 10 candidates, and after all. Of methods with several searches their mean."""
    rows = {}
    for method in METHODS:
        if method != BEZIER:
            rows[method] = [
                (
                    found.gained(cell, BEZIER)[0] - found.gained(cell, method)[0],
                    *(
                        float(found.curve(cell, BEZIER)[:, k - 1].mean() - found.curve(cell, method)[:, k - 1].mean())
                        for k in (10, TRIED)
                    ),
                )
                for cell in found.cells
            ]
    return rows


def against_table(found: Found) -> str:
    lines = []
    for method, rows in against_bezier(found).items():
        held_out, early, late = zip(*rows)
        lines.append([method, shown(early), shown(late), shown(held_out)])
    return markdown(["Bezier, 4 points, minus", "fitness, 10 candidates", f"fitness, {TRIED}", "held out"], lines)


def verdict(found: Found) -> str:
    """Whether Bezier finds more, and with less."""
    held_out = {method: [row[0] for row in rows] for method, rows in against_bezier(found).items()}
    early = {method: [row[1] for row in rows] for method, rows in against_bezier(found).items()}

    def named(of: dict[str, list[float]], sign: int) -> str:
        clear = [m for m, values in of.items() if (interval(values)[0] > 0 if sign > 0 else interval(values)[1] < 0)]
        return " and ".join(clear) or "none"

    best = max(METHODS, key=lambda method: mean(found.gained(cell, method)[0] for cell in found.cells))
    finds_more = [m for m in held_out if interval(held_out[m])[0] > 0 or interval(early[m])[0] > 0]
    return (
        f"{'Against ' + ' and '.join(finds_more) + ', yes.' if finds_more else 'These searches do not show it.'} "
        f"Over the {len(found.cells)} pairs of a model and a length, the held-out gain of the Bezier curve\nwith four "
        f"points is clearly (95 % interval over the pairs) above that of: {named(held_out, 1)}; clearly below that "
        f"of: {named(held_out, -1)}.\nAfter {POPULATION} candidates its best fitness is clearly above that of: "
        f"{named(early, 1)}; clearly below that of: {named(early, -1)}.\nThe greatest mean held-out gain is that of: "
        f"{best}. \nSo few pairs leave wide intervals, and {2 * len(held_out)} of them are "
        f"compared, uncorrected: one may seem clear by chance."
    )


def sizes_table(found: Found) -> str:
    """How large the search's own gain looks, and what is held out, by the number of lists searched on."""
    n, lines = CELLS[0][0], []
    for method in SIZED:
        for lists in sorted({*SIZES, LISTS}):
            told, held_out = [], []
            for cell in [cell for cell in found.cells if cell[0] == n]:
                row, first = found.search(cell, method, 0, lists), found.search(cell, BEZIER, 0, lists)
                if row and first:
                    told.append(max(row["fitness"]) - first["fitness"][0])
                    held_out.append(paired_difference(found.scores(row), found.base(cell))[0])
            if told:
                each = ", ".join(f"{gain:+.1f}" for gain in held_out)
                lines.append([method, str(lists), f"{mean(told):+.1f}", f"{mean(held_out):+.1f}", each])
    return markdown(["method", "lists", "gain the search sees", "held out", "each model"], lines)


def transfer_table(found: Found) -> str:
    lines = []
    for source in found.cells:
        for of, row in found.rows.items():
            if of.startswith(f"transfer {source} to "):
                gain, (low, high) = paired_difference(found.scores(row), found.scores(row, "base"))
                to = of.split(" to ")[1]
                n, model = (int(part) for part in to[1 : to.index(")")].split(","))
                task = to.partition(") ")[2]
                base = 100 * found.scores(row, "base").mean()
                if (n, model) != source or task:
                    kind = "task" if task else "length" if model == source[1] else "model"
                    lines.append([kind, source, (n, model), task, f"{base:.1f}", gain, low, high])
    lines.sort(key=lambda line: (("length", "model", "task").index(line[0]), line[1]))
    return markdown(
        ["across", "searched at", "tried at", "task", "unscaled", "gain"],
        [
            [
                kind,
                f"n = {a[0]}, model {a[1]}",
                f"n = {b[0]}, model {b[1]}",
                task,
                base,
                f"{gain:+.1f} ({low:+.1f} to {high:+.1f})",
            ]
            for kind, a, b, task, base, gain, low, high in lines
        ],
    )


def plot(found: Found, png: Path) -> None:
    """The best fitness over the candidates tried, a panel a length: mean over models and searches, and for three of
    the methods the range of the searches of all models."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    lengths = sorted({n for n, _ in found.cells})
    figure, axes = plt.subplots(1, len(lengths), figsize=(5 * len(lengths), 4.2), squeeze=False)
    for axis, n in zip(axes[0], lengths):
        cells = [cell for cell in found.cells if cell[0] == n]
        for index, method in enumerate(METHODS):
            curves = np.concatenate([found.curve(cell, method) for cell in cells])
            style = {"color": f"C{index}", "linestyle": "--" if method in ("uniform", "yarn") else "-"}
            axis.plot(range(1, TRIED + 1), curves.mean(0), label=method, lw=2.2 if method == BEZIER else 1.2, **style)
            if method in (BEZIER, "free", "uniform") and len(curves) > 1:
                axis.fill_between(range(1, TRIED + 1), curves.min(0), curves.max(0), color=f"C{index}", alpha=0.1, lw=0)
        models = ", ".join(str(model) for _, model in cells)
        axis.set(title=f"{n} records (model {models})", xlabel="candidates tried", xlim=(1, TRIED))
        axis.grid(alpha=0.3)
    axes[0][0].set_ylabel("best fitness minus unscaled, points")
    axes[0][-1].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(png, dpi=90)


def write_report(found: Found) -> None:
    plot(found, ROOT / "docs" / "lpes-depth.png")
    lengths = sorted({n for n, _ in found.cells}, reverse=True)
    missing = [f"n = {n}, model {model}" for n, model in CELLS if (n, model) not in found.cells]
    searches = [row for of, row in found.rows.items() if "seed=" in of]
    sized = any(found.search(cell, BEZIER, 0, lists) for cell in found.cells for lists in SIZES)
    sizes = SIZED_BY.format(n=CELLS[0][0], tried=TRIED, table=sizes_table(found)) if sized else ""
    least = min(len(found.searches(cell, BEZIER)) for cell in found.cells)
    text = RESULTS.format(
        date=date.today(),
        cpu=sum(row["cpu_seconds"] for row in found.rows.values()) / 60,
        searches=len(searches),
        missing=f" Not complete, and left out: {'; '.join(missing)}." if missing else "",
        seeds=" to ".join(map(str, sorted({least, len(found.seeds)}))),
        tried=TRIED,
        population=POPULATION,
        lists=LISTS,
        grain=100 / (LISTS * PLACES),
        places=PLACES,
        held_out=HELD_OUT,
        passes=TRIED * LISTS * PLACES,
        yarn=YARN,
        verdict=verdict(found),
        tables="\n\n".join(f"### n = {n}\n\n{gains_table(found, n)}" for n in lengths),
        against=against_table(found),
        sizes=sizes,
        transfer=transfer_table(found),
    )
    write_section("results", "lpes-depth", text)


SIZED_BY = """\
### How many examples to search on

At n = {n}. The more lists, the less the best of {tried} candidates owes to chance, and the dearer each candidate:

{table}

"""

RESULTS = """\
## LPES at depth: which curve finds more with as many forward passes

Written by `benchmarks/lpes_depth.py` on {date}, one thread of a machine at other work, {cpu:.0f} minutes of its time.
The tiny models of eight layers (`python tests/tiny_recipes.py deep --seed 0`, 1, 2) retrieve from n random records;
they were trained at up to 20, with positions scaled at random. Every search tries {tried} distinct candidates
on {lists} lists of records, with a question about the record at each of {places} places: {passes:,} answers,
the same for every method of a model and a length. The genetic algorithm (population {population}) searches the curves,
CMA-ES one of them; factors lie in [1, 2]. `uniform` is a grid of one factor for all layers, which is what
`rope_parameters` call linear; `yarn` is a grid of transformers' own YaRN from 1 to {yarn:.0f}. "Fitness" is by how
much the best candidate's accuracy on the searched lists exceeds the unscaled model's. It is said after 10, 20 and all
{tried} candidates, as the mean over models and searches. Held-out gains are of {held_out} other lists, with 95 %
intervals paired by list.
Beside each model's name is its unscaled accuracy. Searches of a curve for each pair of model and length:
{seeds}, each on other lists. One answer is {grain:.1f} points of a fitness.{missing}
At n = 20 only model 0 is searched: the others answer 98 % and more there, and have nothing to gain.

The paper (arXiv 2606.27705, abstract) takes Bezier curves "to significantly reduce the search space", for models of
many more layers; these have eight.

### Does Bezier find more with less?

{verdict}

What it gains more than each other method, mean over the pairs of a model and a length, with 95 % intervals
(Student's t over these pairs, of which one model gives several):

{against}

![Best fitness over the candidates tried](lpes-depth.png)

{tables}

{sizes}### Transfer

Held-out gain of the Bezier curve (four points) that one model was searched for at one length, elsewhere. The models'
vocabulary has digits and no words, so that their other tasks are kin to this one. "near keys": all keys share as few
first digits as they can; "after five others": five other questions with their answers stand before the question.

{transfer}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one model, one length, few candidates: under a minute")
    parser.add_argument("--report", action="store_true", help="write the section from what is complete")
    parser.add_argument("--seeds", type=int, default=2, help="searches of each kind, each on other lists")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "lpes-depth")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.quick:
        bench = Bench(Log(options.out / f"quick-{os.getpid()}.jsonl"), 4, 12, 8)
        run(bench, 1, CELLS[:1], ())
        return
    bench = Bench(Log(options.out / "searches.jsonl"), LISTS, TRIED, HELD_OUT)
    if not options.report:
        run(bench, options.seeds)
    write_report(Found(bench.log))


if __name__ == "__main__":
    main()
