"""Iterations of the in-context experiment against drawing samples one by one.

    python benchmarks/experiment.py [--quick] [--depth 2] [--iterations 100]

Both sides train the same attention-only network (d = 64, batch 128, the paper's task) for the same
number of iterations and reach a loss of the same kind. They differ in how they get their sequences:

- one by one (the cost pattern of the paper's public code): both random number generators are seeded
  for each sequence, its classes are a permutation of all 2048, and each item has a draw of its own.
- ours: `posgap.rollout.in_context`: the batch at once.

Test sequences are compared too: theirs draw 2048 class means anew for each, of which two are used. The
last line is JSON: `speed_ratio` (iterations per second, ours / theirs), `draw_ratio` (of the drawing
alone), `test_ratio` (test sequences per second), `loss_ours` and `loss_theirs` at the end.
"""

import argparse
import math
import random
import time

import numpy as np
import torch
import torch.nn.functional as F
from report import conclude
from torch import Generator

from posgap.rollout.in_context import InContextTask, TaskSizes
from posgap.rollout.networks import Design, NetworkStack

SIZES, BATCH = TaskSizes(), 128


def sequence(means, labels, vectors, classes) -> tuple[torch.Tensor, int]:
    """One sequence, item by item; the last class is the query's."""
    parts = []
    for i, k in enumerate(classes):
        noise = torch.normal(0.0, 1 / math.sqrt(SIZES.size), (SIZES.size,))
        parts.append(((means[k] + SIZES.spread * noise) / math.sqrt(1 + SIZES.spread**2))[None])
        if i < SIZES.items:
            parts.append(vectors[labels[k]][None])
    return torch.cat(parts), int(labels[classes[-1]])


def arranged() -> np.ndarray:
    """n items of n / B of the K classes, and the query's."""
    classes = np.random.choice(SIZES.classes, SIZES.items // SIZES.burstiness, replace=False)
    classes = np.random.permutation(np.tile(classes, SIZES.burstiness))
    return np.append(classes, classes[np.random.choice(SIZES.items)])


def one_by_one(task: InContextTask) -> tuple[torch.Tensor, torch.Tensor]:
    drawn = []
    for _ in range(BATCH):
        seed = random.randrange(2**31)
        torch.manual_seed(seed)
        np.random.seed(seed)
        drawn.append(sequence(task.means, task.labels, task.label_vectors, arranged()))
    return torch.stack([x for x, _ in drawn]), torch.tensor([y for _, y in drawn])


def novel_one_by_one(task: InContextTask) -> tuple[torch.Tensor, int]:
    """A test sequence whose every class is new."""
    means = {k: torch.normal(0.0, 1 / math.sqrt(SIZES.size), (SIZES.size,)) for k in range(SIZES.classes)}
    labels = {k: random.randint(0, SIZES.labels - 1) for k in range(SIZES.classes)}
    return sequence(means, labels, task.label_vectors, arranged())


def trained(task: InContextTask, draw, iterations: int, depth: int) -> tuple[float, float, float]:
    """Seconds in all, seconds of drawing, and the mean loss of the last fifth."""
    net = NetworkStack([Design(depth)], SIZES.tokens, SIZES.size, SIZES.labels, [Generator().manual_seed(1)])
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=1e-6, fused=True)
    drawing, losses, started = 0.0, [], time.perf_counter()
    for _ in range(iterations):
        clock = time.perf_counter()
        inputs, answers = draw()
        drawing += time.perf_counter() - clock
        loss = F.cross_entropy(net(inputs[None])[0], answers)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return time.perf_counter() - started, drawing, float(np.mean(losses[-max(1, iterations // 5) :]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="30 iterations, 10 tests: under a minute on two cores")
    parser.add_argument("--threads", type=int, default=1, help="of torch; tensors this small gain nothing by more")
    parser.add_argument("--write", action="store_true", help="write the figures into build/results/")
    for name, default in {"depth": 2, "iterations": 100, "tests": 50}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    if options.quick:
        options.iterations, options.tests = 30, 10
    torch.set_num_threads(options.threads)
    torch.manual_seed(0), np.random.seed(0), random.seed(0)
    rng = Generator().manual_seed(0)
    task = InContextTask(SIZES, rng)
    ours = trained(task, lambda: task.training(BATCH, rng), options.iterations, options.depth)
    theirs = trained(task, lambda: one_by_one(task), options.iterations, options.depth)
    # The same task: untrained networks begin at ln 32 on both sides and go the same way.
    assert abs(ours[2] - theirs[2]) < 0.3, (ours, theirs)
    clock = time.perf_counter()
    for _ in range(options.tests):
        novel_one_by_one(task)
    slow = (time.perf_counter() - clock) / options.tests
    clock = time.perf_counter()
    task.novel(1000, rng, ("first", "last"))
    quick = (time.perf_counter() - clock) / 1000
    lines = []
    for name, (seconds, drawing, loss) in {"one by one": theirs, "ours": ours}.items():
        rate, share = options.iterations / seconds, 100 * drawing / seconds
        lines.append(f"{name:>10}: {rate:7.1f} iterations/s, {share:3.0f} % of the time drawing, loss {loss:.3f}")
    lines.append(f"test sequences: {1 / slow:.0f} per second one by one, {1 / quick:.0f} ours")
    figures = {"speed_ratio": theirs[0] / ours[0], "draw_ratio": theirs[1] / ours[1], "test_ratio": slow / quick}
    losses = {"loss_ours": round(ours[2], 3), "loss_theirs": round(theirs[2], 3)}
    figures = {name: round(value, 1) for name, value in figures.items()} | losses
    conclude("experiment", TEXT, lines, figures, options.write)


TEXT = """\
## Training in the controlled experiment against drawing samples one by one

Written by `benchmarks/experiment.py --write` on {date}, one CPU thread. The same network and optimizer on both sides;
one by one is how the paper's public code draws its sequences.
"""


if __name__ == "__main__":
    main()
