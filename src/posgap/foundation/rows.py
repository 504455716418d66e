"""Rows of tables, CSV and Parquet. They may come from anybody.

Rows come one at a time (of Parquet a batch at a time), so that memory stays flat however long the table is.
"""

import codecs
import csv
import io
import logging
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

from posgap.foundation.errors import PosgapError
from posgap.foundation.json_text import MB, RECORD, open_unpacked

log = logging.getLogger(__name__)
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
        lines, before, read = _text_lines(file, path), 0, 0
        try:
            first = next(lines, "")
            if first.lower().startswith("sep="):  # as Excel has it
                separator, first, before = first[4:5], next(lines, ""), 1
            elif not columns:
                separator = _find_separator(first, separator)
            rows = csv.reader(chain([first], lines), delimiter=separator, strict=True)
            header = list(columns) or next(filter(None, rows), [])
            read = rows.line_num + before
            for cells in filter(None, rows):
                read = rows.line_num + before
                number = read - sum(cell.count("\n") for cell in cells)
                if len(cells) != len(header):
                    raise PosgapError(f"{path}:{number}: not as many cells as columns ({len(header)})")
                yield number, dict(zip(header, cells))
        except csv.Error as error:
            raise PosgapError(f"{path}:{read + 1}: no CSV file: {error}") from None
        except UnicodeDecodeError:
            raise PosgapError(f"{path}: no CSV file in UTF-8 after line {read}; save it as UTF-8") from None


def _find_separator(header: str, usual: str) -> str:
    """What separates the columns of a header: the usual sign, unless another one alone does. Where a comma stands for
    the decimal point, spreadsheets write semicolons."""
    for separator in (usual, ";", "\t", ",", "|"):
        if len(next(csv.reader([header], delimiter=separator), [])) > 1:
            return separator
    return usual


def _text_lines(file: BinaryIO, path: Path) -> Iterator[str]:
    """Yields a file's lines, in UTF-8, in UTF-16 where it begins so, or in code page 1252 from where they are no
    UTF-8."""
    start, encoding = file.peek(2)[:2], "utf-8-sig"  # type: ignore[attr-defined]
    text = io.TextIOWrapper(file, "utf-16", newline="") if start in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else None
    while line := text.readline(RECORD + 1) if text else file.readline(RECORD + 1):
        if len(line) > RECORD:
            raise PosgapError(f"{path}: a line of more than {RECORD // MB} MB")
        if isinstance(line, str):
            yield line
            continue
        try:
            decoded = line.decode(encoding)
        except UnicodeDecodeError:
            encoding, decoded = "cp1252", line.decode("cp1252")
            log.warning("%s: is no UTF-8, and is read in code page 1252", path)
        yield decoded
        encoding = "utf-8" if encoding == "utf-8-sig" else encoding
    if text:
        text.detach()


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
