"""Computes the teacher's distributions once per example and keeps them on disk.

The teacher's distributions over a response are the same in every epoch and for every trivial position, so the frozen
model reads each example once, at the advantageous placement. The final hidden states at the T response tokens are
kept, and the frozen output head turns them back into the logits. That takes T * D numbers per example instead of
T * V, some 30 times less at 7B with a 128k vocabulary. They are stored as memory-mapped safetensors, so that neither
the teacher nor its states need memory while the student trains.
"""

import copy
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel

from posgap.distillation.batches import Batch, Collator, Row, advantageous_rows, chunks
from posgap.distillation.head import Head, require_plain_head, response_states
from posgap.errors import PosgapError
from posgap.files import atomic
from posgap.progress import track

SHARD_ROWS = 64


class TeacherStates:
    """The final hidden states [T, D] of rows, in a folder of safetensors shards.

    `identity` describes the teacher (model, prompts, precision). It is recorded in each shard, and a folder of another
    teacher's states is refused with `PosgapError`. Rows are found by the token ids of prompt and response, so a folder
    serves every run whose examples it covers.
    """

    def __init__(self, folder: Path, identity: dict[str, str]):
        self.folder, self.identity = Path(folder), identity
        self.where: dict[str, tuple[Path, int, int]] = {}
        self.open: dict[Path, Any] = {}  # the shards as opened by safe_open
        for shard in sorted(self.folder.glob("states-*.safetensors")):
            self._index(shard)

    def _index(self, shard: Path) -> None:
        try:
            self.open[shard] = safe_open(shard, framework="pt")
            about = self.open[shard].metadata() or {}
            identity, rows = json.loads(about["identity"]), json.loads(about["rows"])
        except (OSError, SafetensorError, KeyError, ValueError) as error:
            raise PosgapError(f"{shard}: not a file of teacher states ({error}); delete it") from None
        if differing := [name for name in self.identity if identity.get(name) != self.identity[name]]:
            raise PosgapError(
                f"{shard}: holds teacher states of another {' and '.join(differing)}; delete {self.folder}, or give "
                "another `work` folder"
            )
        start = 0
        for key, length in rows:
            self.where[key] = (shard, start, start + length)
            start += length

    def missing(self, rows: Sequence[Row], collate: Collator) -> list[Row]:
        """Those of `rows` whose states are not kept yet."""
        return [row for row in rows if collate.key(row) not in self.where]

    def add(
        self, model: PreTrainedModel, rows: Sequence[Row], collate: Collator, batch_size: int, mixed: bool = False
    ) -> list[Path]:
        """Reads `rows` with the frozen `model`, `batch_size` at a time, keeps their states, and returns the new shards.

        `mixed` means that arithmetic and states are in bfloat16, as the student's are. Shards that are complete
        survive an interruption.
        """
        written = []
        dtype = torch.bfloat16 if mixed else model.dtype
        parts = list(chunks(rows, SHARD_ROWS))
        for part in track(parts, len(parts), "teacher states (shards)"):
            states: list[Tensor] = []
            for batch_rows in chunks(part, batch_size):
                batch = collate(batch_rows).to(model.device)
                with torch.no_grad(), torch.autocast(model.device.type, torch.bfloat16, enabled=mixed):
                    if not self.where and not states:
                        require_plain_head(model, batch)
                    states.append(response_states(model, batch).to(dtype).cpu())
            keys = [(collate.key(row), len(collate.token_ids(row)[1])) for row in part]
            written.append(self._write(torch.cat(states), keys))
        return written

    def _write(self, states: Tensor, rows: list[tuple[str, int]]) -> Path:
        shard = self.folder / f"states-{rows[0][0][:16]}.safetensors"
        metadata = {"identity": json.dumps(self.identity), "rows": json.dumps(rows)}
        try:
            with atomic(shard) as partial:
                save_file({"states": states}, partial, metadata=metadata)
        except (OSError, SafetensorError) as error:
            raise PosgapError(f"{shard}: could not be written: {error}") from None
        self._index(shard)
        return shard

    def read(self, shard: Path, start: int, end: int) -> Tensor:
        """Reads the states `[end - start, D]` from rows `start` to `end` of a shard on disk."""
        return self.open[shard].get_slice("states")[start:end]


class Teacher:
    """The teacher: its frozen head, and each pair's states at the placement where its response was sampled."""

    def __init__(self, states: TeacherStates, head: Head, collate: Collator):
        self.states, self.head = states, head
        rows = advantageous_rows(collate.pairs)
        if missing := states.missing(rows, collate):
            raise PosgapError(
                f"{states.folder}: the teacher states of {len(missing)} of {len(rows)} examples are missing; nodes "
                "without a shared disk need `work` in S3"
            )
        self.where = [states.where[collate.key(row)] for row in rows]

    def hidden(self, batch: Batch) -> Tensor:
        """The teacher's states at each response token of `batch`, `[M, D]`, the same for all of a pair's placements."""
        states = [self.states.read(*self.where[row.pair]) for row in batch.rows]
        return torch.cat(states).to(batch.input_ids.device)


def frozen_head(model: PreTrainedModel, mixed: bool) -> Head:
    """A copy of the model's output head that training does not change."""
    head = Head.of(model)
    linear = copy.deepcopy(head.linear).requires_grad_(False)
    return Head(linear.to(torch.bfloat16) if mixed else linear, head.soft_cap)
