"""No file, however small, exhausts memory or time: what it unpacks to, its rows and its names are bounded."""

import gzip
import os
import sys
import tracemalloc
from pathlib import Path

import pyarrow
import pytest
import yaml
from pyarrow import parquet
from refusals import refuses

from posgap.foundation import bounds, yaml_text
from posgap.foundation.bounds import MB
from posgap.foundation.errors import Malformed, TooLarge, Unreadable
from posgap.foundation.files import digest_path, read_json, read_jsonl, read_rows


def write_repeated(path: Path, text: str, rows: int = 256, in_lists: int = 0) -> None:
    """A Parquet file whose rows all refer to one text; with `in_lists` one row has a list of so many references."""
    column: pyarrow.Array = pyarrow.DictionaryArray.from_arrays(
        pyarrow.array([0] * (in_lists or rows), pyarrow.int32()), pyarrow.array([text])
    )
    if in_lists:
        column = pyarrow.ListArray.from_arrays(pyarrow.array([0, in_lists], pyarrow.int32()), column)
    table = pyarrow.table({"id": [*map(str, range(len(column)))], "question": column})
    parquet.write_table(table, path, compression="zstd", store_schema=False)


def peak_memory(read) -> int:
    """Bytes that Python and Arrow hold at most while `read` runs."""
    before = pyarrow.default_memory_pool().bytes_allocated()
    tracemalloc.start()
    read()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak + max(0, pyarrow.default_memory_pool().bytes_allocated() - before)


def test_a_small_parquet_file_that_unpacks_to_much_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(bounds, "FREE", MB)
    write_repeated(tmp_path / "a.parquet", "x" * 2 * MB)
    assert (tmp_path / "a.parquet").stat().st_size < 2 * MB / bounds.EXPANSION
    with pytest.raises(TooLarge):
        next(iter(read_rows(tmp_path / "a.parquet")))


@pytest.mark.parametrize("nested", [False, True])
def test_a_text_that_each_row_refers_to_is_kept_once(tmp_path, monkeypatch, nested):
    monkeypatch.setattr(bounds, "FREE", 4 * MB)
    monkeypatch.setattr(bounds, "RECORD", 2 * MB)
    write_repeated(tmp_path / "a.parquet", "x" * MB, in_lists=200 if nested else 0)
    rows = []

    def read():
        try:
            rows.extend(row for _, row in read_rows(tmp_path / "a.parquet"))
        except TooLarge as error:
            assert nested and error.at.endswith("a.parquet:1")

    assert peak_memory(read) < 12 * MB  # 256 copies have 256 MB
    assert nested or [row["question"] for row in rows] == ["x" * MB] * 256
    assert nested or [row["id"] for row in rows] == [*map(str, range(256))]


def test_rows_that_repeat_a_text_have_a_largest_size_together(tmp_path, monkeypatch):
    """A file of some kilobytes could fill a disk."""
    monkeypatch.setattr(bounds, "FREE", MB // 2)
    write_repeated(tmp_path / "a.parquet", "x" * 30_000, rows=6_000)
    most = bounds.EXPANSION * max(bounds.FREE, bounds.EXPANSION * (tmp_path / "a.parquet").stat().st_size)
    assert 50e6 < most < 150e6
    read = 0
    with pytest.raises(TooLarge):
        for _, row in read_rows(tmp_path / "a.parquet"):
            read += len(row["id"]) + len(row["question"])
    assert most - 30_010 < read <= most


def test_shared_texts_give_the_same_rows(tmp_path, monkeypatch):
    rows = []
    for number in range(40):
        passages = [{"title": "t" * 50, "text": None if n % 5 == 4 else "u" * 50} for n in range(number % 4)]
        rows.append({"n": number, "ctxs": passages if number % 7 else None, "tags": ["a", None], "map": {"k": 1.5}})
    types = [pyarrow.struct([("title", pyarrow.string()), ("text", pyarrow.string())]), pyarrow.string()]
    schema = pyarrow.schema(
        [("n", pyarrow.int64()), ("ctxs", pyarrow.list_(types[0])), ("tags", pyarrow.large_list(types[1]))]
    )
    parquet.write_table(pyarrow.Table.from_pylist(rows, schema), tmp_path / "a.parquet", row_group_size=16)
    plain = list(read_rows(tmp_path / "a.parquet"))
    monkeypatch.setattr("posgap.foundation.parquet._RECURRENCE", 0.1)
    monkeypatch.setattr(bounds, "FREE", 10)
    monkeypatch.setattr(bounds, "EXPANSION", 10**6)
    monkeypatch.setattr("posgap.foundation.parquet.EXPANSION", 10**6)
    assert list(read_rows(tmp_path / "a.parquet")) == plain
    assert [row["n"] for _, row in plain] == list(range(40)) and plain[1][1]["ctxs"] == rows[1]["ctxs"]


def test_rows_of_nulls_are_passed_over_as_blank_lines_are(tmp_path):
    table = pyarrow.table({"question": [None, "who?", None], "answers": pyarrow.array([None, ["me"], None])})
    parquet.write_table(table, tmp_path / "a.parquet")
    assert list(read_rows(tmp_path / "a.parquet")) == [(2, {"question": "who?", "answers": ["me"]})]


def test_blank_lines_are_passed_over_by_blocks(tmp_path):
    count = 3 * MB
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b"\n" * count + b'{"a": "1"}'))
    calls = 0

    def count_call(frame, event, argument):
        nonlocal calls
        calls += 1

    sys.setprofile(count_call)
    try:
        rows = list(read_rows(tmp_path / "a.jsonl.gz"))
    finally:
        sys.setprofile(None)
    assert rows == [(count + 1, {"a": "1"})]
    assert calls < count / 100


@pytest.mark.parametrize("filler", ['"' + ("x" * 1000 + "\n") * 90 + '",', "\n" * 3_000])
def test_a_row_of_many_lines_has_a_largest_size(tmp_path, monkeypatch, filler):
    monkeypatch.setattr(bounds, "RECORD", MB // 8)
    monkeypatch.setattr(bounds, "BLOCK", MB // 64)
    (tmp_path / "a.csv").write_text(f"a,b,c\n1,2,3\n{filler * 100}4,5,6\n")
    rows = read_rows(tmp_path / "a.csv")
    assert next(iter(rows)) == (2, {"a": "1", "b": "2", "c": "3"})
    with pytest.raises(TooLarge) as told:
        next(iter(rows))
    assert told.value.at.startswith(f"{tmp_path / 'a.csv'}:")


@pytest.mark.parametrize("read", [read_json, digest_path, lambda path: list(read_jsonl(path))])
@pytest.mark.parametrize("kind", ["device", "pipe"])
def test_what_has_no_end_is_not_read(tmp_path, read, kind):
    os.symlink("/dev/zero", tmp_path / "device")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(Unreadable) as told:
        read(tmp_path / kind)
    assert told.value.at == str(tmp_path / kind)


def test_each_name_of_a_yaml_mapping_is_compared_once():
    comparisons = 0

    class Name(str):
        __slots__ = ()

        def __hash__(self):
            return super().__hash__()

        def __eq__(self, other):
            nonlocal comparisons
            comparisons += 1
            return super().__eq__(other)

    tag = "tag:yaml.org,2002:str"
    pairs = []
    for number in range(2000):
        pairs.append((yaml.ScalarNode(tag, Name(f"name{number}")), yaml.ScalarNode(tag, "")))
    mapping = yaml_text._TextLoader("").construct_mapping(yaml.MappingNode("tag:yaml.org,2002:map", pairs))
    assert len(mapping) == 2000 and comparisons < 20_000
    with refuses(Malformed, "'b'", "line 1", at="x"):
        yaml_text.parse_yaml(b"a: 1\nb: 2\nc: 3\nb: 4", "x", "a test", 1000)
