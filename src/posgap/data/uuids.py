"""Synthetic key-value records in the format of the public lost-in-the-middle file."""

import random
from collections.abc import Iterator
from uuid import UUID

from posgap.tasks.examples import KVExample


def uuid_records(n_examples: int, n_keys: int, seed: int) -> Iterator[dict]:
    """Yields `{"ordered_kv_records": [[key, value], ...], "key": ..., "value": ...}`.

    Keys and values are random version-4 UUIDs, distinct within an example; the queried record is drawn evenly. Equal
    arguments give equal records.
    """
    rng = random.Random(seed)

    def uuid4() -> str:
        return str(UUID(int=rng.getrandbits(128), version=4))

    for _ in range(n_examples):
        records: dict[str, str] = {}
        while len(records) < n_keys:
            records[uuid4()] = uuid4()
        key = rng.choice(list(records))
        yield {"ordered_kv_records": [list(r) for r in records.items()], "key": key, "value": records[key]}


def uuid_examples(n_examples: int, n_keys: int, seed: int) -> Iterator[KVExample]:
    """Yields the same records as examples."""
    for number, row in enumerate(uuid_records(n_examples, n_keys, seed), start=1):
        key, value, records = row["key"], row["value"], row["ordered_kv_records"]
        yield KVExample(id=f"kv-{number:05d}", question=key, answers=[value], key=key, value=value, records=records)
