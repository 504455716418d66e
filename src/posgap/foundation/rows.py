"""Rows of tables, CSV and Parquet. They may come from anybody.

Rows come one at a time (of Parquet a batch at a time), so that memory stays flat however long the table is.
"""

import csv
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

from posgap.foundation.errors import PosgapError, shorten
from posgap.foundation.json_text import MB, RECORD, open_unpacked

SEPARATORS = {".csv": ",", ".tsv": "\t"}
_PARQUET = ".parquet"
_BATCH = 256  # rows of a Parquet file that are in memory at once


def kind_of_table(path: Path) -> str:
    """The ending that says how a table is written, ".csv", ".tsv" or ".parquet", as for folders of Parquet files; empty
    for anything else."""
    path = Path(path)
    if path.is_dir():
        return _PARQUET if any(path.glob("*.parquet")) else ""
    endings = [suffix for suffix in path.suffixes[-2:] if suffix != ".gz"]
    ending = endings[-1] if endings else ""
    return ending if ending in SEPARATORS or path.suffix == _PARQUET else ""


def table_rows(path: Path, columns: Sequence[str] = ()) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields (number from 1, row by the columns' names) of a table. A row's number in CSV is the line where it begins.

    It is a file `.csv` or `.tsv` (also with `.gz`) or `.parquet`, or a folder of Parquet files. The cells of CSV are
    text; `columns` names them where the file has no header. Raises `PosgapError` that names the file, and the row where
    one is wrong.
    """
    path = Path(path)
    kind = kind_of_table(path)
    if kind in SEPARATORS:
        yield from _read_csv(path, SEPARATORS[kind], columns)
        return
    parts = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
    if not parts:
        raise PosgapError(f"{path}: a folder without Parquet files, as `to_parquet` of a data set writes them")
    yield from enumerate(chain.from_iterable(map(_read_parquet, parts)), start=1)


def _read_csv(path: Path, separator: str, columns: Sequence[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    csv.field_size_limit(RECORD)
    with open_unpacked(path) as file:
        rows = csv.reader(_text_lines(file, path), delimiter=separator, strict=True)
        read = 0  # lines
        try:
            header = list(columns) or next(filter(None, rows), [])
            # Where a comma stands for the decimal point, spreadsheets separate the columns of CSV by semicolons.
            if len(header) == 1 and set(header[0]) & set(";\t,") - {separator}:
                one = shorten(repr(header[0]))
                raise PosgapError(
                    f"{path}: has the one column {one}; separate its columns by commas in .csv, by tabs in .tsv"
                )
            read = rows.line_num
            for cells in filter(None, rows):
                read = rows.line_num
                number = read - sum(cell.count("\n") for cell in cells)
                if len(cells) != len(header):
                    raise PosgapError(f"{path}:{number}: not as many cells as columns ({len(header)})")
                yield number, dict(zip(header, cells))
        except csv.Error as error:
            raise PosgapError(f"{path}:{read + 1}: no CSV file in UTF-8: {error}") from None
        except UnicodeDecodeError:
            raise PosgapError(f"{path}: no CSV file in UTF-8 after line {read}; save it as UTF-8") from None


def _text_lines(file: BinaryIO, path: Path) -> Iterator[str]:
    first = True
    while line := file.readline(RECORD + 1):
        if len(line) > RECORD:
            raise PosgapError(f"{path}: a line of more than {RECORD // MB} MB")
        yield line.decode("utf-8-sig" if first else "utf-8")
        first = False


def _read_parquet(path: Path) -> Iterator[dict[str, Any]]:
    import pyarrow
    from pyarrow import parquet

    try:
        with open(path, "rb") as file:
            for batch in parquet.ParquetFile(file).iter_batches(batch_size=_BATCH):
                yield from batch.to_pylist()
    except FileNotFoundError:
        raise PosgapError(f"{path}: no such file") from None
    except (OSError, pyarrow.ArrowException, UnicodeDecodeError) as error:
        why = (str(error).splitlines() or ["damaged"])[0]
        raise PosgapError(f"{path}: cannot be read as parquet: {why}") from None
