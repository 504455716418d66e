"""Rows of Parquet files, which may come from anybody.

A Parquet file of a few bytes can expand to many gigabytes: pages are packed, and every row of a column may refer to one
long text. So sizes are compared with the file's own before anything is read, and rows come in batches of bounded size.
A column whose texts may recur too often is read as references to texts that are kept once.
"""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow
from pyarrow import compute, parquet

from posgap.foundation import bounds
from posgap.foundation.bounds import EXPANSION, open_plain
from posgap.foundation.errors import NotFound, TooLarge, Unreadable, first_line

_MAX_ROWS = 256  # of a batch
_RECURRENCE = 16  # growth limit of a column's texts, relative to its own bytes, when each row gets a copy
_INDEX_BYTES = 8  # that an item of a list takes at least


def read_parquet(path: Path) -> Iterator[dict[str, Any]]:
    """Yields the rows of a file by the columns' names."""
    try:
        with open_plain(path) as file:
            metadata = parquet.read_metadata(file)
            _require_bounded(metadata, path)
            shared = _columns_to_share(file, metadata)
            table = parquet.ParquetFile(file, metadata=metadata, read_dictionary=shared, pre_buffer=False)
            for number, group in enumerate(_groups(metadata)):
                for batch in table.iter_batches(batch_size=_batch_size(group), row_groups=[number]):
                    if not shared:
                        yield from batch.to_pylist()
                        continue
                    for cells in zip(*map(_cells, batch.columns)):
                        yield dict(zip(batch.schema.names, cells))
    except FileNotFoundError:
        raise NotFound("no such file", at=str(path)) from None
    except (OSError, pyarrow.ArrowException, UnicodeDecodeError) as error:
        raise Unreadable(f"cannot be read as parquet: {first_line(error)}", at=str(path)) from None


def _require_bounded(metadata: parquet.FileMetaData, path: Path) -> None:
    """Raises `TooLarge` if a file claims to unpack to too much, or to hold too many items of lists, for its size."""
    unpacked = 0
    for group in _groups(metadata):
        unpacked += group.total_byte_size
        for number in range(group.num_columns):
            if metadata.schema.column(number).max_repetition_level:
                unpacked += group.column(number).num_values * _INDEX_BYTES
    if unpacked > max(bounds.FREE, EXPANSION * path.stat().st_size):
        raise TooLarge(f"unpacks to more than {EXPANSION} times its size, which real data never does", at=str(path))


def _batch_size(group: parquet.RowGroupMetaData) -> int:
    """The rows of a batch, which has few if rows are large."""
    bytes_of_row = group.total_byte_size / max(group.num_rows, 1)
    return int(max(1, min(_MAX_ROWS, bounds.RECORD / max(bytes_of_row, 1))))


def _columns_to_share(file: BinaryIO, metadata: parquet.FileMetaData) -> list[str]:
    """Returns the columns whose texts would far exceed their bytes if each row had its own copy."""
    names = [metadata.schema.column(number).path for number in range(metadata.num_columns)]
    texts = [name for number, name in enumerate(names) if metadata.schema.column(number).physical_type == "BYTE_ARRAY"]
    table = parquet.ParquetFile(file, metadata=metadata, read_dictionary=texts, pre_buffer=False)
    shared = set()
    for number, group in enumerate(_groups(metadata)):
        columns = [group.column(each) for each in range(group.num_columns)]
        most = [max(bounds.FREE, _RECURRENCE * column.total_uncompressed_size) for column in columns]
        if all(column.num_values * column.total_uncompressed_size <= n for column, n in zip(columns, most)):
            continue
        for batch in table.iter_batches(batch_size=1, row_groups=[number]):
            leaves = [leaf for column in batch.columns for leaf in _leaves(column)]
            for name, column, leaf, n in zip(names, columns, leaves, most, strict=True):
                longest = compute.max(compute.binary_length(leaf.dictionary)).as_py() if _is_shared(leaf) else 0
                if (longest or 0) * column.num_values > n:
                    shared.add(name)
            break  # the first row brings all the texts that others can refer to
    return sorted(shared)


def _groups(metadata: parquet.FileMetaData) -> Iterator[parquet.RowGroupMetaData]:
    return map(metadata.row_group, range(metadata.num_row_groups))


def _is_shared(array: pyarrow.Array) -> bool:
    return pyarrow.types.is_dictionary(array.type)


def _is_list(array: pyarrow.Array) -> bool:
    return pyarrow.types.is_list(array.type) or pyarrow.types.is_large_list(array.type)


def _leaves(array: pyarrow.Array) -> Iterator[pyarrow.Array]:
    """The arrays of plain cells within an array, one for each of the file's columns."""
    if pyarrow.types.is_struct(array.type):
        for inner in array.flatten():
            yield from _leaves(inner)
    elif pyarrow.types.is_map(array.type):
        yield from _leaves(array.keys)
        yield from _leaves(array.items)
    elif _is_list(array) or pyarrow.types.is_fixed_size_list(array.type):
        yield from _leaves(array.values)
    else:
        yield array.storage if isinstance(array, pyarrow.ExtensionArray) else array


def _cells(array: pyarrow.Array) -> list[Any]:
    """Returns a column's cells as Python values; equal texts of a batch are one object."""
    if _is_shared(array):
        places = array.indices.to_pylist()
        texts = {place: array.dictionary[place].as_py() for place in {*places} - {None}}
        return [texts.get(place) for place in places]
    if pyarrow.types.is_struct(array.type):
        names = [field.name for field in array.type]
        rows = [dict(zip(names, cells)) for cells in zip(*map(_cells, array.flatten()))]
        return [row if valid else None for row, valid in zip(rows, array.is_valid().to_pylist())]
    if _is_list(array):
        items = iter(_cells(array.flatten()))
        lengths = compute.list_value_length(array).to_pylist()
        return [None if length is None else list(islice(items, length)) for length in lengths]
    return array.to_pylist()
