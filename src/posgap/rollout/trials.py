"""Trains and tests attention-only networks, in stacks that can be resumed; every trial's result has its own file."""

import hashlib
import io
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from posgap.foundation import files
from posgap.foundation.locations import Location
from posgap.foundation.progress import track
from posgap.rollout.in_context import PAIRS, InContextTask, TaskSizes
from posgap.rollout.networks import Design, NetworkStack
from posgap.storage.folders import ResumableFolder

log = logging.getLogger(__name__)
SINK_THRESHOLD = 0.2
EVALUATED_AT_ONCE = 1000  # test sequences in a batch, for each trial
CHECKPOINTS = 20
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


def run_trials(
    trials: Sequence[Trial], training: Training, work: Location, side_by_side: int = SIDE_BY_SIDE
) -> list[dict]:
    """Results of `trials`, in their order; see `tested`. Trials whose result is in `work` are not run again.

    Trials of equal depth and sizes train together, in stacks of at most `side_by_side`.
    """
    kept = ResumableFolder(work)
    kept.pull()
    paths = {trial: kept.folder / f"{files.digest_of([asdict(trial), asdict(training)])[:16]}.json" for trial in trials}
    stacks: dict[tuple, list[Trial]] = {}
    for trial in trials:
        stacks.setdefault((trial.design.depth, trial.sizes), []).append(trial)
    for alike in stacks.values():
        # Stacks are formed before finished trials are left out, so that a resumed stack matches its checkpoint.
        for at in range(0, len(alike), side_by_side):
            stack = alike[at : at + side_by_side]
            if all(paths[trial].is_file() for trial in stack):
                continue
            checkpoint = kept.folder / f"{files.digest_of([paths[trial].stem for trial in stack])[:16]}.pt"
            with one_thread():
                results = tested(stack, *trained(stack, training, checkpoint, kept.push), training.tests)
            for trial, result in zip(stack, results):
                files.write_json(paths[trial], result)
            kept.push(paths[trial] for trial in stack)
            kept.drop([checkpoint.name])
            checkpoint.unlink(missing_ok=True)
    return [files.read_json(paths[trial]) for trial in trials]


@contextmanager
def one_thread() -> Iterator[None]:
    """Limits torch to one thread: on the CPU, waking more costs such small networks more time than they save."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def trained(
    stack: Sequence[Trial],
    training: Training,
    checkpoint: Path,
    written: Callable[[list[Path]], None] = lambda paths: None,
) -> tuple[NetworkStack, list[InContextTask], list[float]]:
    """The stack after training, its tasks, and each trial's mean loss over the last tenth of the iterations.

    Training goes on from `checkpoint` if it exists; `written` is called with its path whenever it was written.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    rngs = [Generator(device).manual_seed(trial.seed) for trial in stack]
    sizes = stack[0].sizes
    tasks = [InContextTask(sizes, rng) for rng in rngs]
    net = NetworkStack([t.design for t in stack], sizes.tokens, sizes.size, sizes.labels, rngs).to(device)
    optimizer = torch.optim.AdamW(
        net.parameters(), lr=training.learning_rate, weight_decay=training.weight_decay, fused=True
    )
    done, recent = 0, torch.zeros(len(stack), device=device)
    if state := saved_state(checkpoint, device):
        net.load_state_dict(state["network"])
        optimizer.load_state_dict(state["optimizer"])
        for rng, saved in zip(rngs, state["rngs"]):
            rng.set_state(saved.cpu())
        done, recent = state["done"], state["recent"]
    last_tenth = training.iterations - training.iterations // 10
    every = max(1, training.iterations // CHECKPOINTS)
    what = f"{len(stack)} networks of depth {stack[0].design.depth}"
    for step in track(range(done, training.iterations), training.iterations - done, what):
        drawn = [task.training(training.batch, rng) for task, rng in zip(tasks, rngs)]
        inputs, answers = (torch.stack(parts) for parts in zip(*drawn))
        losses = F.cross_entropy(net(inputs).flatten(0, 1), answers.flatten(), reduction="none")
        losses = losses.view(answers.shape).mean(dim=1)
        optimizer.zero_grad()
        losses.sum().backward()
        optimizer.step()
        if step >= last_tenth:
            recent += losses.detach()
        if (step + 1) % every == 0:
            state = {"network": net.state_dict(), "optimizer": optimizer.state_dict(), "done": step + 1}
            _save_state(checkpoint, state | {"rngs": [rng.get_state() for rng in rngs], "recent": recent})
            written([checkpoint])
    return net, tasks, (recent / max(1, training.iterations - last_tenth)).tolist()


def _save_state(checkpoint: Path, state: dict[str, Any]) -> None:
    """Writes a training state behind its own sha256."""
    packed = io.BytesIO()
    torch.save(state, packed)
    with files.atomic(checkpoint) as partial:
        partial.write_bytes(hashlib.sha256(packed.getvalue()).hexdigest().encode() + b"\n" + packed.getvalue())


def saved_state(checkpoint: Path, device: torch.device) -> dict[str, Any]:
    """The state; empty where there is none, or, with a warning, where it is not the one that was written."""
    if not checkpoint.is_file():
        return {}
    sha256, _, packed = checkpoint.read_bytes().partition(b"\n")
    if hashlib.sha256(packed).hexdigest().encode() != sha256:
        log.warning("%s: is damaged; these networks are trained from the beginning", checkpoint)
        return {}
    return torch.load(io.BytesIO(packed), map_location=device, weights_only=True)


@torch.no_grad()
def tested(
    stack: Sequence[Trial], net: NetworkStack, tasks: Sequence[InContextTask], losses: Sequence[float], tests: int
) -> list[dict]:
    """Results of each network on sequences of novel classes, which are the same for equal seeds.

    `accuracy` is in points, for each pair "a,b" and, under "any", for queries without position bias; `gaps` are
    [a, b] - [b, a] in points. `sinks` [T] (Gu et al.'s metric, appendix K.4) and the mean `attention` [depth, T, T]
    are taken over the sequences without bias.
    """
    device = next(net.parameters()).device
    sums = {key: torch.zeros(len(stack), device=device) for key in ("any", *map(",".join, PAIRS))}
    seen_by = (stack_mask(stack).sum(dim=1) * net.depth).to(device)
    tokens = stack[0].sizes.tokens
    sinks = torch.zeros(len(stack), tokens, device=device)
    maps = torch.zeros(len(stack), net.depth, tokens, tokens, device=device)
    for pair in (None, *PAIRS):
        rngs = [Generator(device).manual_seed(1_000_003 * (trial.seed + 1)) for trial in stack]
        for at in range(0, tests, EVALUATED_AT_ONCE):
            size = min(EVALUATED_AT_ONCE, tests - at)
            inputs, answers = (
                torch.stack(p) for p in zip(*(task.novel(size, rng, pair) for task, rng in zip(tasks, rngs)))
            )
            matrices: list[Tensor] | None = None if pair else []
            right = net(inputs, matrices).argmax(-1) == answers
            sums[",".join(pair) if pair else "any"] += 100 * right.sum(dim=1) / tests
            if matrices:
                sinks += sum((a > SINK_THRESHOLD).sum(dim=(1, 2)) for a in matrices) / seen_by / tests
                maps += torch.stack([a.sum(dim=1) for a in matrices], dim=1) / tests
    results = []
    for i, loss in enumerate(losses):
        accuracy = {key: float(values[i]) for key, values in sums.items()}
        pairs = (("first", "middle"), ("first", "last"), ("middle", "last"))
        gaps = {f"{a},{b}": accuracy[f"{a},{b}"] - accuracy[f"{b},{a}"] for a, b in pairs}
        results.append(
            {
                "loss": loss,
                "accuracy": accuracy,
                "gaps": gaps,
                "sinks": sinks[i].tolist(),
                "attention": maps[i].tolist(),
            }
        )
    return results


def nulls(trial: Trial) -> dict:
    """What a network shows that has learned nothing of position: the figures to hold a trial's results against.

    `chance` is the accuracy, in points, of a copier on novel classes: it names one of the items' labels, whichever
    item the query is like. `uniform_attention` [T, T] attends to every token that the mask allows alike, and
    `uniform_sinks` [T] is its sink metric: early tokens are seen by queries that see few, each above the threshold.
    """
    allowed = stack_mask([trial])[0].double()
    uniform = allowed / allowed.sum(dim=1, keepdim=True)
    sinks = (uniform > SINK_THRESHOLD).sum(dim=0) / allowed.sum(dim=0)
    return {
        "chance": 100 * trial.sizes.burstiness / trial.sizes.items,
        "uniform_attention": uniform.tolist(),
        "uniform_sinks": sinks.tolist(),
    }


def stack_mask(stack: Sequence[Trial]) -> Tensor:
    """Which tokens each network's mask allows to be seen, [R, T, T]."""
    return torch.stack([trial.design.bias(trial.sizes.tokens) > -torch.inf for trial in stack])
