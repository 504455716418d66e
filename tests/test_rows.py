"""Tables that anybody may have written: CSV, Parquet and the folders of `datasets`, row by row."""

import gzip

import pandas
import pyarrow
import pytest
from pyarrow import ipc

from posgap.foundation.errors import PosgapError
from posgap.foundation.files import read_rows, write_json
from posgap.foundation.rows import kind_of_table, table_rows

ROWS = [{"question": "who?", "answers": ["me", "I"], "score": 0.5}, {"question": "ä\nb", "answers": [], "score": 1.0}]


def test_parquet_arrow_and_a_data_set_s_folder_have_the_same_rows(tmp_path):
    frame, expected = pandas.DataFrame(ROWS), list(enumerate(ROWS, start=1))
    frame.to_parquet(tmp_path / "a.parquet")
    table = pyarrow.Table.from_pylist(ROWS)
    for name, opened in (("stream.arrow", ipc.new_stream), ("file.arrow", ipc.new_file)):
        with opened(tmp_path / name, table.schema) as writer:
            writer.write_table(table)
    folder = tmp_path / "saved"
    folder.mkdir()
    (tmp_path / "stream.arrow").rename(folder / "data-00000-of-00001.arrow")
    write_json(folder / "state.json", {"_data_files": [{"filename": "data-00000-of-00001.arrow"}]})
    for path in (tmp_path / "a.parquet", tmp_path / "file.arrow", folder):
        assert list(table_rows(path)) == expected
        assert list(read_rows(path)) == expected


def test_what_datasets_saves_is_read(tmp_path):
    datasets = pytest.importorskip("datasets")
    datasets.Dataset.from_list(ROWS).save_to_disk(tmp_path / "one")
    assert list(table_rows(tmp_path / "one")) == list(enumerate(ROWS, start=1))
    splits = datasets.DatasetDict({"train": datasets.Dataset.from_list(ROWS)})
    splits.save_to_disk(tmp_path / "several")
    with pytest.raises(PosgapError, match=r"several splits \(train\)"):
        list(table_rows(tmp_path / "several"))
    assert len(list(table_rows(tmp_path / "several" / "train"))) == 2


def test_csv_has_cells_of_many_lines(tmp_path):
    text = '\ufeffquestion,answer\r\n"a, ""b""\n\nc",1\r\n,2\r\n'
    (tmp_path / "a.csv").write_text(text, encoding="utf-8", newline="")
    (tmp_path / "a.tsv.gz").write_bytes(gzip.compress(b"question\tanswer\nx\ty\n"))
    assert list(table_rows(tmp_path / "a.csv")) == [
        (1, {"question": 'a, "b"\n\nc', "answer": "1"}),
        (2, {"question": "", "answer": "2"}),
    ]
    assert list(table_rows(tmp_path / "a.tsv.gz")) == [(1, {"question": "x", "answer": "y"})]
    (tmp_path / "one.csv").write_text('"text, as it is"\na\n', encoding="utf-8")
    assert list(table_rows(tmp_path / "one.csv")) == [(1, {"text, as it is": "a"})]


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("a.csv", b"a,b\n1,2\n1,2,3\n", "a.csv:2: not as many cells as columns"),
        ("a.csv", b"a,b\n1\n", "a.csv:1: not as many cells"),
        ("a.csv", b'a,b\n"1,2\n', "a.csv:1: no CSV file in UTF-8"),
        ("a.csv", b"a;b\n1;2,5\n", "a.csv: has the one column 'a;b'; separate its columns by commas in .csv"),
        ("a.csv", b"a\tb\n1\t2\n", "a.csv: has the one column"),
        ("a.tsv", b"a,b\n1,2\n", "a.tsv: has the one column 'a,b'; .* by tabs in .tsv"),
        ("a.csv", b"a\n\xe4\n", "no CSV file in UTF-8 after row 0"),
        ("a.parquet", b"PAR1 no PAR1", "cannot be read"),
        ("a.arrow", b"ARROW1", "cannot be read"),
        ("a.arrow", b"", "cannot be read"),
        ("b.parquet", None, "no such file"),
        ("b.csv", None, "no such file"),
    ],
)
def test_broken_tables_are_named_in_a_line(tmp_path, name, content, complaint):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(PosgapError, match=complaint) as caught:
        list(table_rows(tmp_path / name))
    assert "\n" not in str(caught.value)


def test_a_folder_s_files_lie_in_it(tmp_path):
    write_json(tmp_path / "state.json", {"_data_files": [{"filename": "../secret.arrow"}]})
    with pytest.raises(PosgapError, match="names no `_data_files` of its folder"):
        list(table_rows(tmp_path))
    assert [kind_of_table(tmp_path / n) for n in ("a.jsonl.gz", "a.csv.gz", "a.parquet.gz")] == ["", ".csv", ""]
