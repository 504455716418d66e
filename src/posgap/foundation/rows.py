"""Rows of tables: CSV, Parquet, and what the library `datasets` writes. They may come from anybody.

Rows come one at a time (of Parquet a batch at a time), so that memory stays flat however long the table is.
"""

import csv
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from posgap.foundation.errors import PosgapError, shortened
from posgap.foundation.json_text import MB, RECORD, document, opened, parse

SEPARATORS = {".csv": ",", ".tsv": "\t"}
_COLUMNS = (".parquet", ".arrow")
_BATCH = 256  # rows of a Parquet file that are in memory at once


def kind_of_table(path: Path) -> str:
    """The ending that says how a table is written: ".csv", ".tsv", ".parquet" or ".arrow".

    "folder" for a folder that `datasets` wrote or that holds Parquet files; empty for anything else.
    """
    path = Path(path)
    if path.is_dir():
        of_datasets = any((path / name).is_file() for name in ("state.json", "dataset_dict.json"))
        return "folder" if of_datasets or any(path.glob("*.parquet")) else ""
    endings = [suffix for suffix in path.suffixes[-2:] if suffix != ".gz"]
    ending = endings[-1] if endings else ""
    return ending if ending in SEPARATORS or (ending in _COLUMNS and path.suffix != ".gz") else ""


def table_rows(path: Path, columns: Sequence[str] = ()) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields (number from 1, row by the columns' names) of a table.

    It is a file `.csv` or `.tsv` (also with `.gz`), `.parquet` or `.arrow`, or a folder: one that
    `datasets.Dataset.save_to_disk` wrote, or one of Parquet files. The cells of CSV are text; `columns` names them
    where the file has no header. Raises `PosgapError` that names the file, and the row where one is wrong.
    """
    path = Path(path)
    kind = kind_of_table(path)
    if kind in SEPARATORS:
        yield from _separated(path, SEPARATORS[kind], columns)
        return
    number = 0
    for part in _parts_of(path) if path.is_dir() else [path]:
        for row in _columnar(part):
            number += 1
            yield number, row


def _separated(path: Path, separator: str, columns: Sequence[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    csv.field_size_limit(RECORD)
    with opened(path) as file:
        rows = csv.DictReader(_text_lines(file, path), columns or None, delimiter=separator, strict=True)
        number = 0
        try:
            header = rows.fieldnames or ()
            # Where a comma stands for the decimal point, spreadsheets separate the columns of CSV by semicolons.
            if len(header) == 1 and set(header[0]) & set(";\t,") - {separator}:
                one = shortened(repr(header[0]))
                raise PosgapError(
                    f"{path}: has the one column {one}; separate its columns by commas in .csv, by tabs in .tsv"
                )
            for number, row in enumerate(rows, start=1):
                if None in row or None in row.values():
                    raise PosgapError(f"{path}:{number}: not as many cells as columns ({len(rows.fieldnames or ())})")
                yield number, row
        except csv.Error as error:
            raise PosgapError(f"{path}:{number + 1}: no CSV file in UTF-8: {error}") from None
        except UnicodeDecodeError:
            raise PosgapError(f"{path}: no CSV file in UTF-8 after row {number}; save it as UTF-8") from None


def _text_lines(file: BinaryIO, path: Path) -> Iterator[str]:
    first = True
    while line := file.readline(RECORD + 1):
        if len(line) > RECORD:
            raise PosgapError(f"{path}: a line of more than {RECORD // MB} MB")
        yield line.decode("utf-8-sig" if first else "utf-8")
        first = False


def _columnar(path: Path) -> Iterator[dict[str, Any]]:
    import pyarrow
    from pyarrow import ipc, parquet

    try:
        with open(path, "rb") as file:
            if path.suffix == ".parquet":
                for batch in parquet.ParquetFile(file).iter_batches(batch_size=_BATCH):
                    yield from batch.to_pylist()
                return
            # `datasets` writes streams; other writers of Arrow write files that begin with this word.
            is_stream = file.read(6) != b"ARROW1"
            file.seek(0)
            if is_stream:
                batches: Iterable[Any] = ipc.open_stream(file)
            else:
                reader = ipc.open_file(file)
                batches = map(reader.get_batch, range(reader.num_record_batches))
            for batch in batches:
                for start in range(0, batch.num_rows, _BATCH):
                    yield from batch.slice(start, _BATCH).to_pylist()
    except FileNotFoundError:
        raise PosgapError(f"{path}: no such file") from None
    except (OSError, pyarrow.ArrowException, UnicodeDecodeError) as error:
        why = (str(error).splitlines() or ["damaged"])[0]
        raise PosgapError(f"{path}: cannot be read as {path.suffix[1:]}: {why}") from None


def _parts_of(folder: Path) -> list[Path]:
    """The files of a data set's folder that hold its rows, in their order."""
    if files := sorted(path for path in folder.glob("*.parquet") if path.is_file()):
        return files
    if (folder / "dataset_dict.json").is_file():
        splits = ", ".join(sorted(part.name for part in folder.iterdir() if part.is_dir()))
        raise PosgapError(f"{folder}: holds several splits ({splits}); give the folder of one of them")
    if not (folder / "state.json").is_file():
        raise PosgapError(f"{folder}: a folder without parquet files that `datasets` did not write")
    state = parse(document(folder / "state.json"), str(folder / "state.json"))
    state = state if isinstance(state, dict) else {}
    if state.get("_indices_data_files"):
        raise PosgapError(f"{folder}: a selection of rows; save what `flatten_indices()` makes of it")
    parts = state.get("_data_files")
    names = (
        [str(part.get("filename", "")) for part in parts or () if isinstance(part, dict)]
        if isinstance(parts, list)
        else []
    )
    if not names or not all(name and Path(name).name == name for name in names):
        raise PosgapError(f"{folder / 'state.json'}: names no `_data_files` of its folder; save the dataset again")
    return [folder / name for name in names]
