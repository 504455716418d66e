"""Rows of tables, CSV and Parquet. They may come from anybody.

Rows come one at a time (of Parquet a batch at a time), so that memory stays flat however long the table is.
"""

import codecs
import csv
import io
import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from posgap.foundation import bounds
from posgap.foundation.bounds import EXPANSION, MB, Blocks, open_unpacked, require_bounded_row
from posgap.foundation.errors import Malformed, NotFound, TooLarge

log = logging.getLogger(__name__)
SEPARATORS = {".csv": ",", ".tsv": "\t"}
MAX_COLUMNS = 16_384  # of CSV, as spreadsheets have at most
_PARQUET = ".parquet"
_SPREADSHEETS = (".xlsx", ".xlsm", ".xls", ".ods", ".numbers")


def kind_of_table(path: Path) -> str:
    """The ending that says how a table is written, ".csv", ".tsv" or ".parquet", as for folders of Parquet files; empty
    for anything else."""
    path = Path(path)
    if path.suffix.lower() in _SPREADSHEETS:
        raise Malformed("a spreadsheet; save it as CSV (UTF-8), which is read with any separator", at=str(path))
    if path.is_dir():
        return _PARQUET if any(path.glob("*.parquet")) else ""
    endings = [suffix for suffix in path.suffixes[-2:] if suffix != ".gz"]
    ending = endings[-1] if endings else ""
    return ending if ending in SEPARATORS or path.suffix == _PARQUET else ""


def table_rows(path: Path, columns: Sequence[str] = ()) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields (number from 1, row by the columns' names) of a table. A row's number in CSV is the line where it begins.

    It is a file `.csv` or `.tsv` (also with `.gz`) or `.parquet`, or a folder of Parquet files. The cells of CSV are
    text; `columns` names them if the file has no header. Rows of empty cells are passed over. Raises `PosgapError`,
    which names the file, and the row if one is wrong.
    """
    path = Path(path)
    kind = kind_of_table(path)
    rows = _read_csv(path, SEPARATORS[kind], columns) if kind in SEPARATORS else _read_parts(path)
    texts = most = 0
    for number, row in rows:
        texts += require_bounded_row(row, f"{path}:{number}")
        # Each row of a Parquet file can refer to the same long text, so that a few bytes make rows without end.
        most = most or EXPANSION * max(bounds.FREE, EXPANSION * _size(path))
        if texts > most:
            problem = f"the texts of the rows up to here have more than {most // MB:,} MB"
            raise TooLarge(f"{problem}, too much for a file of this size", at=f"{path}:{number}")
        yield number, row


def _size(path: Path) -> int:
    return sum(file.stat().st_size for file in (path.glob("*.parquet") if path.is_dir() else [path]))


def _read_parts(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields the rows of a Parquet file or a folder of them, without empty ones, as for CSV's empty lines."""
    from posgap.foundation.parquet import read_parquet  # late: pyarrow takes a second to load

    parts = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
    if not parts:
        raise NotFound("a folder without Parquet files, as `to_parquet` of a data set writes them", at=str(path))
    for number, row in enumerate(chain.from_iterable(map(read_parquet, parts)), start=1):
        if any(cell is not None for cell in row.values()):
            yield number, row


def _read_csv(path: Path, separator: str, columns: Sequence[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    csv.field_size_limit(bounds.RECORD)
    with open_unpacked(path) as file:
        is_utf16 = file.peek(2)[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)  # type: ignore[attr-defined]
        blocks = Blocks(file, path)
        lines = _text_lines(blocks, is_utf16)
        before = read = 0
        try:
            first = next(lines, "")
            if first.lower().startswith("sep="):  # as in Excel
                separator = first[4:5]
                first = next(lines, "")
                before = 1
            elif not columns:
                separator = _find_separator(first, separator)
            blocks.row_began = 0
            rows = csv.reader(chain([first], lines), delimiter=separator, strict=True)
            header = list(columns)
            for cells in filter(any, rows):  # spreadsheets write commas alone below the last row
                read = rows.line_num + before
                blocks.row_began = blocks.n_read
                if len(cells) > MAX_COLUMNS:
                    raise TooLarge(f"more than {MAX_COLUMNS:,} cells in a row", at=f"{path}:{read}")
                if not header:
                    header = cells
                    twice = [name for name, often in Counter(map(str.strip, header)).items() if name and often > 1]
                    if twice:
                        raise Malformed(f"two columns are called {twice[0]!r}; rename one", at=str(path))
                    continue
                number = read - sum(cell.count("\n") for cell in cells)
                if len(cells) != len(header):
                    raise Malformed(f"not as many cells as columns ({len(header)})", at=f"{path}:{number}")
                yield number, dict(zip(header, cells))
        except csv.Error as error:
            raise Malformed(f"no CSV file: {error}", at=f"{path}:{read + 1}") from None
        except UnicodeDecodeError:  # of UTF-16
            raise Malformed(f"no CSV file in UTF-16 after line {read}; save it as UTF-8", at=str(path)) from None


def _find_separator(header: str, usual: str) -> str:
    """Returns the separator of a header's columns: the usual character, unless another one alone occurs. If a comma
    stands for the decimal point, spreadsheets write semicolons."""
    for separator in (usual, ";", "\t", ",", "|"):
        if len(next(csv.reader([header], delimiter=separator), [])) > 1:
            return separator
    return usual


def _text_lines(blocks: Blocks, is_utf16: bool) -> Iterator[str]:
    """Yields a file's lines as text."""
    rest = ""  # what follows the last line end; in UTF-16 a block may end within a line
    for text in codecs.iterdecode(blocks, "utf-16") if is_utf16 else _decode(blocks):
        text = rest + text
        end = text.rfind("\n") + 1
        yield from io.StringIO(text[:end], newline="\n")
        rest = text[end:]
        if len(rest) > bounds.RECORD:
            raise TooLarge(f"a line of more than {bounds.RECORD // MB} MB", at=str(blocks.path))
    if rest:
        yield rest


def _decode(blocks: Blocks) -> Iterator[str]:
    """Yields the text of blocks in UTF-8, or in code page 1252 from the first line that is no UTF-8."""
    encoding = "utf-8"
    for block in blocks:
        if not blocks.n_lines:
            block = block.removeprefix(codecs.BOM_UTF8)
        text = ""
        end = 0
        if encoding == "utf-8":
            try:
                text = block.decode()
                end = len(block)
            except UnicodeDecodeError as error:
                log.warning("%s: is not UTF-8 text, so it is read as code page 1252", blocks.path)
                encoding = "cp1252"
                end = block.rfind(b"\n", 0, error.start) + 1
                text = block[:end].decode()
        try:
            yield text + block[end:].decode("cp1252")
        except UnicodeDecodeError as error:
            before = blocks.n_lines + block.count(b"\n", 0, end + error.start)
            raise Malformed(
                f"no CSV file in UTF-8 after line {before}; save it as UTF-8", at=str(blocks.path)
            ) from None
