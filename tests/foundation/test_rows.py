"""Tables that anybody may have written, CSV and Parquet, row by row."""

import gzip

import pandas
import pytest
from refusals import refuses

from posgap.foundation.errors import Malformed, NotFound, Unreadable
from posgap.foundation.files import read_rows
from posgap.foundation.rows import kind_of_table, table_rows

ROWS = [{"question": "who?", "answers": ["me", "I"], "score": 0.5}, {"question": "ä\nb", "answers": [], "score": 1.0}]


def test_parquet_in_a_file_and_in_parts_has_the_same_rows(tmp_path):
    expected = list(enumerate(ROWS, start=1))
    pandas.DataFrame(ROWS).to_parquet(tmp_path / "a.parquet")
    parts = tmp_path / "parts"
    parts.mkdir()
    for number, row in enumerate(ROWS):
        pandas.DataFrame([row]).to_parquet(parts / f"test-{number}.parquet")
    for path in (tmp_path / "a.parquet", parts):
        assert list(table_rows(path)) == expected
        assert list(read_rows(path)) == expected


def test_csv_has_cells_of_many_lines(tmp_path):
    text = '\ufeffquestion,answer\r\n"a, ""b""\n\nc",1\r\n,2\r\n'
    (tmp_path / "a.csv").write_text(text, encoding="utf-8", newline="")
    (tmp_path / "a.tsv.gz").write_bytes(gzip.compress(b"question\tanswer\nx\ty\n"))
    assert list(table_rows(tmp_path / "a.csv")) == [
        (2, {"question": 'a, "b"\n\nc', "answer": "1"}),
        (5, {"question": "", "answer": "2"}),
    ]
    (tmp_path / "b.csv").write_text('x\n1\n\n\n"2\n3"\n', encoding="utf-8")
    assert list(table_rows(tmp_path / "b.csv")) == [(2, {"x": "1"}), (5, {"x": "2\n3"})]
    assert next(iter(table_rows(tmp_path / "b.csv", ["y"]))) == (1, {"y": "x"})
    assert list(table_rows(tmp_path / "a.tsv.gz")) == [(2, {"question": "x", "answer": "y"})]
    (tmp_path / "one.csv").write_text('"text, as it is"\na\n', encoding="utf-8")
    assert list(table_rows(tmp_path / "one.csv")) == [(2, {"text, as it is": "a"})]


@pytest.mark.parametrize(
    ("content", "row"),
    [
        (b"a;b\n1;2,5\n", {"a": "1", "b": "2,5"}),
        (b"\xef\xbb\xbfsep=;\r\na;b\r\n1;2,5\r\n", {"a": "1", "b": "2,5"}),
        (b"a\tb\n1\t2\n", {"a": "1", "b": "2"}),
        ("a\tb\n1\t山\n".encode("utf-16"), {"a": "1", "b": "山"}),
        (b"a,b\n1,\xe4\n", {"a": "1", "b": "ä"}),
        (b",\na,b\n,\n1,2\n,\n,,\n", {"a": "1", "b": "2"}),
    ],
)
def test_tables_are_read_as_spreadsheets_write_them(tmp_path, content, row):
    for name in ("a.csv", "a.tsv"):
        (tmp_path / name).write_bytes(content)
        assert [cells for _, cells in table_rows(tmp_path / name)] == [row]


@pytest.mark.parametrize(
    ("name", "content", "kind", "at"),
    [
        ("a.csv", b"a,b\n1,2\n1,2,3\n", Malformed, "a.csv:3"),
        ("a.csv", b"a,b\n1\n", Malformed, "a.csv:2"),
        ("a.csv", b'a,b\n"1,2\n', Malformed, "a.csv:2"),
        ("a.csv", b"a\n\x81\n", Malformed, "a.csv"),
        ("a.parquet", b"PAR1 no PAR1", Unreadable, "a.parquet"),
        ("b.parquet", None, NotFound, "b.parquet"),
        ("b.csv", None, NotFound, "b.csv"),
    ],
)
def test_broken_tables_are_named_in_a_line(tmp_path, name, content, kind, at):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with refuses(kind, at=at) as caught:
        list(table_rows(tmp_path / name))
    assert "\n" not in str(caught.value)


def test_what_is_no_table_is_told_apart(tmp_path):
    with pytest.raises(NotFound):
        list(table_rows(tmp_path))
    assert [kind_of_table(tmp_path / n) for n in ("a.jsonl.gz", "a.csv.gz", "a.parquet.gz")] == ["", ".csv", ""]
