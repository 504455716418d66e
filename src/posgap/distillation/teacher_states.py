"""Computes the teacher's distributions once per example and keeps them on disk.

The teacher is the student before its first step. Its distributions over a response are the same in every epoch and for
every trivial position, so each example is read once, at the advantageous placement, before training begins: by the
wrapped student itself, so that both are the same function in every precision and ZeRO-3 partitions the teacher too. The
final hidden states at the T response tokens are kept, and the frozen output head turns them back into the logits. That
takes T * D numbers per example instead of T * V, some 30 times less at 7B with a 128k vocabulary. They are stored as
memory-mapped safetensors, so neither the teacher nor its states take memory while the student trains.
"""

import copy
import json
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel

from posgap.distillation.batches import Batch, Collator, teacher_prompts
from posgap.distillation.batching import divide_rows
from posgap.distillation.head import Head
from posgap.distillation.losses import index_on
from posgap.distillation.processes import gather, gather_whole, meet, rank_and_world
from posgap.distillation.temperature import choose_temperature, log_probabilities
from posgap.foundation.errors import PosgapError, Unreadable
from posgap.foundation.files import atomic
from posgap.foundation.progress import track
from posgap.storage.folders import ResumableFolder

log = logging.getLogger(__name__)
SHARD_ROWS = 64
CARD_BYTES = 2**30  # of a GPU's memory, for states that were read


class TeacherStates:
    """The final hidden states [T, D] of rows, in a folder of safetensors shards.

    `identity` describes the teacher (model, prompts, precision). It is recorded in each shard, and a folder of another
    teacher's states is refused with `PosgapError`. Rows are found by the token ids of prompt and response, so a folder
    serves every run with the same examples.
    """

    def __init__(self, folder: ResumableFolder | Path, identity: dict[str, str]):
        self.kept = folder if isinstance(folder, ResumableFolder) else ResumableFolder(folder)
        self.folder = self.kept.folder
        self.identity = identity
        self.where: dict[str, tuple[Path, int, int]] = {}
        self.open: dict[Path, Any] = {}  # the shards as opened by safe_open
        self.index_shards()

    def index_shards(self) -> None:
        """Takes in the shards that are there, other processes' and other machines' too."""
        self.kept.pull()
        for shard in sorted(self.folder.glob("states-*.safetensors")):
            if shard not in self.open:
                self._index(shard)

    def _index(self, shard: Path) -> None:
        try:
            self.open[shard] = safe_open(shard, framework="pt")
            about = self.open[shard].metadata() or {}
            identity = json.loads(about["identity"])
            rows = json.loads(about["rows"])
        except (OSError, SafetensorError, KeyError, ValueError) as error:
            raise Unreadable(f"{shard}: not a file of teacher states ({error}); delete it") from None
        differing = [name for name in self.identity if identity.get(name) != self.identity[name]]
        if differing:
            raise PosgapError(
                f"{shard}: has teacher states of another {' and '.join(differing)}; delete {self.folder}, or give "
                "another `work` folder"
            )
        start = 0
        for key, length in rows:
            self.where[key] = (shard, start, start + length)
            start += length

    def store(self, states: Sequence[Tensor], keys: Sequence[str]) -> None:
        """Keeps the states `[T, D]` of rows in a new shard; `keys` are the rows' keys (`Collator.key`)."""
        shard = self.folder / f"states-{keys[0][:16]}.safetensors"
        rows = [(key, len(of_row)) for key, of_row in zip(keys, states)]
        metadata = {"identity": json.dumps(self.identity), "rows": json.dumps(rows)}
        try:
            with atomic(shard) as partial:
                save_file({"states": torch.cat(list(states))}, partial, metadata=metadata)
        except (OSError, SafetensorError) as error:
            raise PosgapError(f"{shard}: could not be written: {error}") from None
        self._index(shard)
        self.kept.push([shard])


class Teacher:
    """The teacher: its frozen head, and each pair's states at the placement where its response was sampled.

    Its logits are divided by `temperature`; 0 until `choose_temperature` finds one.
    """

    def __init__(self, states: TeacherStates, head: Head, collate: Collator, temperature: float = 1.0):
        self.states = states
        self.head = head
        self.collate = collate
        self.temperature = temperature
        self.keys = [collate.digest(row) for row in teacher_prompts(collate.pairs)]
        self.on_card: dict[int, Tensor] = {}  # states of pairs that a GPU keeps, up to `CARD_BYTES`

    def read_missing(self, student: Callable[..., Tensor], device: torch.device, micro_batch_tokens: int) -> None:
        """Reads the rows that no earlier run has kept, with a `student` that is not trained yet.

        Processes share the rows, but call the student equally often. Complete shards survive an interruption. Raises
        `PosgapError` if this machine lacks the states that others have read.
        """
        rank, world = rank_and_world()
        rows = teacher_prompts(self.collate.pairs)
        missing = sorted(set().union(*gather(self._missing())))
        lengths = [len(self.collate.input_tokens(row)) for row in rows]
        parts = divide_rows(missing, lengths, world, micro_batch_tokens)
        states: list[Tensor] = []
        keys: list[str] = []
        for part in track(parts, len(parts), "teacher states (micro-batches)"):
            for call in part.calls(rank, world):
                batch = self.collate([rows[index] for index in call]).to(device)
                with torch.no_grad():
                    read = student(batch, states_alone=True)
                # In the head's own form: keeping them loses nothing.
                states += read.to("cpu", self.head.linear.weight.dtype).split(batch.lengths.tolist())
            keys += [self.keys[index] for index in part.items[rank::world]]
            states = states[: len(keys)]  # without copies of the last row
            if keys and (len(keys) >= SHARD_ROWS or part is parts[-1]):
                self.states.store(states, keys)
                states = []
                keys = []
        if not missing:
            return
        meet()
        self.states.index_shards()
        missing = self._missing()
        if missing:
            raise PosgapError(
                f"{self.states.folder}: the teacher states of {len(missing)} of {len(rows)} examples are missing; "
                "nodes without a shared disk need `work` in S3"
            )

    def states_of(self, batch: Batch) -> Tensor:
        """The teacher's states at each response token of `batch`, `[M, D]`, the same for all of a pair's placements."""
        return torch.cat([self._states_of_pair(row.pair, batch.input_ids.device) for row in batch.rows])

    def logits(self, states: Tensor) -> Tensor:
        """The logits `[M, V]` that the student learns, of states `[M, D]`."""
        logits = self.head(states)
        return logits if self.temperature == 1 else logits / self.temperature

    def choose_temperature(self, device: torch.device) -> None:
        """Chooses the temperature by the probability of the least likely token of each correct response; the same on
        all processes. Does nothing if there is one."""
        if self.temperature:
            return
        least = []
        for index, pair in enumerate(self.collate.pairs):
            if pair.response.correct:
                targets = index_on(device, pair.response.token_ids)
                states = self._states_of_pair(index, device)
                with torch.no_grad():
                    least.append(self.head.losses(log_probabilities, states, targets).min(0).values)
        chosen, before, after = choose_temperature(torch.stack(least)) if least else (1.0, 0.0, 0.0)
        self.temperature = gather(chosen)[0]
        if least:
            log.info(
                "teacher temperature %g: the least likely token of a correct answer has a mean probability of %.2f "
                "(%.2f at temperature 1)",
                self.temperature,
                after,
                before,
            )

    def _states_of_pair(self, pair: int, device: torch.device) -> Tensor:
        states = self.on_card.get(pair)
        if states is None:
            shard, start, end = self.states.where[self.keys[pair]]
            states = self.states.open[shard].get_slice("states")[start:end].to(device, non_blocking=True)
            if device.type != "cpu" and (len(self.on_card) + 1) * states.nbytes < CARD_BYTES:
                self.on_card[pair] = states  # read again in every epoch, and for every placement
        return states

    def _missing(self) -> list[int]:
        return [i for i, key in enumerate(self.keys) if key not in self.states.where]


def frozen_head(model: PreTrainedModel, rounded: bool, device: torch.device | str = "cpu") -> Head:
    """Returns a copy of the output head that training does not change, `rounded` to bfloat16 if parameters are."""
    head = copy.copy(Head.from_model(model))
    with gather_whole(head.linear.parameters()):
        values = {}
        for name, parameter in head.linear.named_parameters():
            values[name] = parameter.detach().to(device, torch.bfloat16 if rounded else None, copy=True)
    vocabulary, width = values["weight"].shape
    head.linear = torch.nn.Linear(width, vocabulary, bias="bias" in values, device="meta").requires_grad_(False)
    head.linear.load_state_dict(values, assign=True)
    return head
