"""The teacher's distributions, computed once per example and kept on disk.

The teacher's distributions over a response are the same in every epoch and for every trivial
position, so the frozen model reads each example once, at the advantageous placement. Kept are its
final hidden states at the T response tokens, which the frozen output head turns back into the
logits: T * D numbers for an example instead of T * V, at 7B and a 128k vocabulary some 30 times
less. They lie in memory-mapped safetensors, so that neither teacher nor states need memory while
the student trains.
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
    """Final hidden states [T, D] by what was read, in a folder of safetensors shards.

    `identity` says whose they are (model, prompts, precision): it stands in each shard, and a
    folder of another teacher is refused. A row is known by the token ids of its prompt and
    response, so one folder serves every run whose examples it covers.
    """

    def __init__(self, folder: Path, identity: dict[str, str]):
        self.folder, self.identity = Path(folder), identity
        self.where: dict[str, tuple[Path, int, int]] = {}
        self.open: dict[Path, Any] = {}  # safe_open's
        for shard in sorted(self.folder.glob("states-*.safetensors")):
            self._index(shard)

    def _index(self, shard: Path) -> None:
        try:
            self.open[shard] = safe_open(shard, framework="pt")
            about = self.open[shard].metadata() or {}
            found, rows = json.loads(about["identity"]), json.loads(about["rows"])
        except (OSError, SafetensorError, KeyError, ValueError) as error:
            raise PosgapError(f"{shard}: not a file of teacher states ({error}); delete it") from None
        if differing := [name for name in self.identity if found.get(name) != self.identity[name]]:
            raise PosgapError(
                f"{shard}: teacher states of another {' and '.join(differing)}; delete {self.folder}, or name another"
            )
        start = 0
        for key, length in rows:
            self.where[key] = (shard, start, start + length)
            start += length

    def missing(self, rows: Sequence[Row], collate: Collator) -> list[Row]:
        """Those of `rows` that are not kept yet."""
        return [row for row in rows if collate.key(row) not in self.where]

    def add(
        self, model: PreTrainedModel, rows: Sequence[Row], collate: Collator, batch_size: int, mixed: bool = False
    ) -> list[Path]:
        """Reads `rows` with the frozen `model`, `batch_size` at a time, and keeps the states; returns the shards.

        `mixed`: the arithmetic is in bfloat16, as the student's is, and so are the states. What
        is complete survives an interruption.
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
        """The states `[end - start, D]` of a shard, from disk."""
        return self.open[shard].get_slice("states")[start:end]


class Teacher:
    """The frozen head, and each pair's states at the placement its response was sampled at."""

    def __init__(self, states: TeacherStates, head: Head, collate: Collator):
        self.states, self.head = states, head
        rows = advantageous_rows(collate.pairs)
        if missing := states.missing(rows, collate):
            raise PosgapError(
                f"{states.folder}: lacks the teacher states of {len(missing)} of {len(rows)} examples; nodes without a "
                "shared disk need `work` in S3"
            )
        self.where = [states.where[collate.key(row)] for row in rows]

    def hidden(self, batch: Batch) -> Tensor:
        """The teacher's states at each response token of `batch`, `[M, D]`, wherever a row's gold stands."""
        states = [self.states.read(*self.where[row.pair]) for row in batch.rows]
        return torch.cat(states).to(batch.input_ids.device)


def frozen_head(model: PreTrainedModel, mixed: bool) -> Head:
    """A copy of the model's output head that training does not move."""
    head = Head.of(model)
    linear = copy.deepcopy(head.linear).requires_grad_(False)
    return Head(linear.to(torch.bfloat16) if mixed else linear, head.soft_cap)
