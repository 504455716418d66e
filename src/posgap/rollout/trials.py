"""Trains and tests attention-only networks, in stacks; every trial's result has its own file."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from posgap.foundation import files
from posgap.foundation.locations import Location
from posgap.foundation.progress import track
from posgap.rollout.files import SINK_THRESHOLD
from posgap.rollout.in_context import PAIRS, InContextTask, TaskSizes
from posgap.rollout.networks import Design, NetworkStack
from posgap.storage.folders import ResumableFolder

EVALUATED_AT_ONCE = 1000  # test sequences in a batch, for each trial
SIDE_BY_SIDE = 8  # networks trained as one stack


@dataclass(frozen=True)
class Training:
    """Hyperparameters of appendix J: AdamW without warm-up or decay of the learning rate."""

    iterations: int = 100_000
    batch: int = 128
    learning_rate: float = 1e-3
    weight_decay: float = 1e-6
    tests: int = 10_000


@dataclass(frozen=True)
class Trial:
    """One network trained once: its design, its data, and the seed of both."""

    design: Design
    sizes: TaskSizes
    seed: int


def run_trials(trials: Sequence[Trial], training: Training, work: Location) -> list[dict]:
    """Returns the results of `trials`, in their order; see `test_networks`. Trials with a result in `work` are not run
    again.

    Trials of equal depth and sizes train together, in stacks of at most `SIDE_BY_SIDE`.
    """
    kept = ResumableFolder(work)
    kept.pull()
    paths = {}
    stacks: dict[tuple, list[Trial]] = {}
    for trial in trials:
        paths[trial] = kept.folder / f"{files.digest_of([asdict(trial), asdict(training)])[:16]}.json"
        stacks.setdefault((trial.design.depth, trial.sizes), []).append(trial)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # waking more costs such small networks more time than they save
    try:
        for alike in stacks.values():
            for at in range(0, len(alike), SIDE_BY_SIDE):
                stack = alike[at : at + SIDE_BY_SIDE]
                if all(paths[trial].is_file() for trial in stack):
                    continue
                results = test_networks(stack, *train_networks(stack, training), training.tests)
                for trial, result in zip(stack, results):
                    files.write_json(paths[trial], result)
                kept.push(paths[trial] for trial in stack)
    finally:
        torch.set_num_threads(threads)
    return [files.read_json(paths[trial]) for trial in trials]


def train_networks(stack: Sequence[Trial], training: Training) -> tuple[NetworkStack, list[InContextTask], list[float]]:
    """The stack after training, its tasks, and each trial's mean loss over the last tenth of the iterations."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    sizes = stack[0].sizes
    rngs = []
    tasks = []
    designs = []
    for trial in stack:
        rngs.append(Generator(device).manual_seed(trial.seed))
        tasks.append(InContextTask(sizes, rngs[-1]))
        designs.append(trial.design)
    net = NetworkStack(designs, sizes.tokens, sizes.size, sizes.labels, rngs).to(device)
    optimizer = torch.optim.AdamW(
        net.parameters(), lr=training.learning_rate, weight_decay=training.weight_decay, fused=True
    )
    recent = torch.zeros(len(stack), device=device)
    last_tenth = training.iterations - training.iterations // 10
    what = f"{len(stack)} networks of depth {stack[0].design.depth}"
    for step in track(range(training.iterations), training.iterations, what):
        drawn = [task.training(training.batch, rng) for task, rng in zip(tasks, rngs)]
        inputs, answers = map(torch.stack, zip(*drawn))
        losses = F.cross_entropy(net(inputs).flatten(0, 1), answers.flatten(), reduction="none")
        losses = losses.view(answers.shape).mean(dim=1)
        optimizer.zero_grad()
        losses.sum().backward()
        optimizer.step()
        if step >= last_tenth:
            recent += losses.detach()
    return net, tasks, (recent / max(1, training.iterations - last_tenth)).tolist()


@torch.no_grad()
def test_networks(
    stack: Sequence[Trial], net: NetworkStack, tasks: Sequence[InContextTask], losses: Sequence[float], tests: int
) -> list[dict]:
    """Results of each network on sequences of novel classes, which are the same for equal seeds.

    `accuracy` is in points, for each pair "a,b" and, under "any", for queries without position bias; `gaps` are
    [a, b] - [b, a] in points. `sinks` [T] (Gu et al.'s metric, appendix K.4) is taken over the sequences without bias.
    """
    device = next(net.parameters()).device
    sums = {key: torch.zeros(len(stack), device=device) for key in ("any", *map(",".join, PAIRS))}
    seen_by = (stack_mask(stack).sum(dim=1) * net.depth).to(device)
    sinks = torch.zeros(len(stack), stack[0].sizes.tokens, device=device)
    for pair in (None, *PAIRS):
        rngs = [Generator(device).manual_seed(1_000_003 * (trial.seed + 1)) for trial in stack]
        for at in range(0, tests, EVALUATED_AT_ONCE):
            size = min(EVALUATED_AT_ONCE, tests - at)
            drawn = [task.novel(size, rng, pair) for task, rng in zip(tasks, rngs)]
            inputs, answers = map(torch.stack, zip(*drawn))
            matrices: list[Tensor] | None = None if pair else []
            right = net(inputs, matrices).argmax(-1) == answers
            sums[",".join(pair) if pair else "any"] += 100 * right.sum(dim=1) / tests
            if matrices:
                for attention in matrices:
                    sinks += (attention > SINK_THRESHOLD).sum(dim=(1, 2)) / seen_by / tests
    results = []
    for i, loss in enumerate(losses):
        accuracy = {key: float(values[i]) for key, values in sums.items()}
        gaps = {}
        for one, other in (("first", "middle"), ("first", "last"), ("middle", "last")):
            gaps[f"{one},{other}"] = accuracy[f"{one},{other}"] - accuracy[f"{other},{one}"]
        results.append({"loss": loss, "accuracy": accuracy, "gaps": gaps, "sinks": sinks[i].tolist()})
    return results


def nulls(trial: Trial) -> dict:
    """Returns what a network shows that has learned nothing of position: the baseline for a trial's results.

    `chance` is the accuracy, in points, of a copier on novel classes: it names one of the items' labels, whichever item
    the query resembles. `uniform_sinks` [T] is the sink metric of equal attention to every token that the mask allows:
    queries that see few tokens give each of the early ones more than the threshold.
    """
    allowed = stack_mask([trial])[0].double()
    uniform = allowed / allowed.sum(dim=1, keepdim=True)
    sinks = (uniform > SINK_THRESHOLD).sum(dim=0) / allowed.sum(dim=0)
    return {
        "chance": 100 * trial.sizes.burstiness / trial.sizes.items,
        "uniform_sinks": sinks.tolist(),
    }


def stack_mask(stack: Sequence[Trial]) -> Tensor:
    """Which tokens each network's mask allows to be seen, [R, T, T]."""
    return torch.stack([trial.design.bias(trial.sizes.tokens) > -torch.inf for trial in stack])


@dataclass(frozen=True)
class Preset:
    """An experiment: its designs by name, each trained for `seeds` seeds."""

    designs: dict[str, Design]
    sizes: TaskSizes
    training: Training
    seeds: int


_DESIGNS = {
    "causal, depth 2": Design(2),
    "causal, depth 3": Design(3),
    "window 9, depth 2": Design(2, "window", width=9),
    "prefix 4, depth 2": Design(2, "prefix", prefix=4),
}
# A task that networks learn: items of a class hardly differ; two of each of four classes stand in a sequence (a copier
# is right in a quarter); and there are too many classes with too few labels to learn them by heart.
_SIZES = TaskSizes(size=32, burstiness=2, classes=8192, labels=8, spread=0.1)
_LEARNED = Preset(_DESIGNS, _SIZES, Training(3000, 64, 3e-3, tests=2000), seeds=5)
_QUICK = {name: _DESIGNS[name] for name in ("causal, depth 2", "window 9, depth 2")}

PRESETS = {"quick": replace(_LEARNED, designs=_QUICK, seeds=1), "learned": _LEARNED}
