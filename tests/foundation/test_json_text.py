"""JSON that anybody may have written ends in a value, or in one line that names the place; never in all the memory."""

import gzip
import json
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refuses

from posgap.foundation import bounds, json_text
from posgap.foundation.bounds import EXPANSION, MB
from posgap.foundation.errors import Malformed, PosgapError, TooLarge, Unreadable
from posgap.foundation.files import read_json, read_jsonl, read_rows
from posgap.foundation.json_text import DEPTH, MAX_INTEGER, parse_json, require_unique_names

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-MAX_INTEGER, MAX_INTEGER)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.full
@given(values)
def test_every_value_comes_back(value):
    for text in (json.dumps(value), json.dumps(value, ensure_ascii=False)):
        assert parse_json(text, "x") == value


texts = st.text('a":\\ ', max_size=3)
pairs = st.recursive(
    texts.map(json.dumps),
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda each: f"[{', '.join(each)}]")
        | st.lists(st.tuples(texts.map(json.dumps), st.sampled_from([":", " : "]), inner), max_size=3).map(
            lambda each: "{" + ", ".join("".join(pair) for pair in each) + "}"
        )
    ),
    max_leaves=8,
)


@given(pairs)
def test_a_name_is_refused_where_its_object_has_it_already(text):
    twice = []

    def look(names):
        twice.append(len(dict(names)) < len(names))

    json.loads(text, object_pairs_hook=look)
    value = parse_json(text, "here")
    if any(twice):
        with refuses(Malformed, at="here"):
            require_unique_names(text.encode(), value, "here")
    else:
        require_unique_names(text.encode(), value, "here")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", ""),
        ("NaN", "NaN"),
        ('{"a": [-Infinity]}', "NaN"),
        ("[1e999]", "float"),
        ("-" + "9" * 400 + ".5", "float"),
        ('{"a": 1%s}' % ("0" * 30), "31 digits"),
        (str(MAX_INTEGER + 1), "64 bits"),
        ("1" * 5000, "4300 digits"),
        ("[" * 100_000, "200 levels"),
        ('{"a":' * 300 + "1" + "}" * 300, "200 levels"),
        (r'"\ud800"', ""),
        ('"\ud800"', ""),
        (b'"\xff"', ""),
        ('{"a": 1} {"b": 2}', ""),
    ],
)
def test_what_is_no_ordinary_json_is_one_line(text, named):
    with refuses(Malformed, named, at="here") as told:
        parse_json(text, "here")
    assert len(str(told.value).splitlines()) == 1 and len(str(told.value)) < 200


def test_numbers_in_strings_and_the_largest_ones_are_no_fault():
    text = json.dumps(
        [str(10**60), "f47ac10b-58cc-4372-a567-0e02b2c3d479e999", MAX_INTEGER, -MAX_INTEGER, 1e308, 5e-324]
    )
    assert parse_json(text, "x") == json.loads(text)
    assert len(parse_json("[" * DEPTH + "]" * DEPTH, "x")) == 1


@pytest.mark.parametrize("name", ["a.json", "a.json.gz"])
def test_a_byte_order_mark_is_no_fault(tmp_path, name):
    def write(content: bytes):
        (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
        return tmp_path / name

    assert read_json(write(b'\xef\xbb\xbf{"a": 1}')) == {"a": 1}
    assert list(read_rows(write(b'\xef\xbb\xbf\r\n[{"a": 1}]'))) == [(1, {"a": 1})]
    lines = write(b'\xef\xbb\xbf{"a": 1}\r\n\r\n{"a": 2}')
    assert list(read_jsonl(lines)) == [(1, {"a": 1}), (3, {"a": 2})]


@pytest.mark.full
@settings(max_examples=200)
@given(
    st.lists(st.dictionaries(st.text(max_size=4), values, max_size=3) | st.lists(values, max_size=3), max_size=4),
    st.sampled_from([None, 1]),
    st.booleans(),
    st.integers(1, 9),
)
def test_the_items_of_an_array_are_those_of_the_whole(tmp_path_factory, array, indent, ascii, block):
    file = tmp_path_factory.mktemp("array") / "a.json"
    file.write_text(json.dumps(array, indent=indent, ensure_ascii=ascii) + "\n", encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_text, "BLOCK", block)
        assert list(read_rows(file)) == list(enumerate(array, start=1))


@given(st.binary(max_size=60) | st.text('[]{}",:\\ 1aN', max_size=30).map(str.encode))
def test_whatever_stands_in_a_file_is_read_or_named(tmp_path_factory, content):
    folder = tmp_path_factory.mktemp("any")
    for name, read in (("a.json", read_json), ("a.jsonl", read_jsonl), ("a.json", read_rows), ("a.json.gz", read_rows)):
        (folder / name).write_bytes(content)
        try:
            found = read(folder / name)
            assert found is not None or content.strip(b" \xef\xbb\xbf") == b"null"
            list(found) if read is not read_json else None
        except PosgapError as told:
            assert str(told).startswith(str(folder / name))


@pytest.mark.parametrize(
    ("content", "at", "named"),
    [
        (b'[{"a": 1} {"a": 2}]', "a.json", "item 1"),
        (b'[{"a": 1},]', "a.json:2", "b']'"),
        (b'[{"a": 1}', "a.json", "item 1"),
        (b'[{"a": 1}] {}', "a.json", ""),
        (b'[{"a": "]}', "a.json:1", ""),
        (b'[{"a": NaN}]', "a.json:1", "NaN"),
        (b"[1, 2]", "a.json:1", "b'1, 2]'"),
        (b"[" * 1000, "a.json:1", ""),
        (b"", "a.json", ""),
    ],
)
def test_a_broken_array_is_named_with_its_item(tmp_path, content, at, named):
    (tmp_path / "a.json").write_bytes(content)
    with refuses(Malformed, named, at=at):
        list(read_rows(tmp_path / "a.json"))


def test_a_cut_or_damaged_archive_is_named(tmp_path):
    whole = gzip.compress(b"".join(b'{"id": "%x"}\n' % (i**9) for i in range(5000)))
    broken = {"cut": whole[:-2000], "damaged": whole[:4000] + b"\0" * 50 + whole[4050:], "no": b"{}"}
    for name, content in broken.items():
        file = tmp_path / f"{name}.jsonl.gz"
        file.write_bytes(content)
        with refuses(Unreadable, at=file):
            list(read_jsonl(file))


def test_an_archive_that_unpacks_to_too_much_takes_no_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(bounds, "FREE", 8 * MB)
    row = b'{"a": "%s"}' % (b"x" * (MB // 16))
    for name, unit in {"lines.jsonl.gz": row + b"\n", "array.json.gz": row + b","}.items():
        with gzip.open(tmp_path / name, "wb") as file:
            file.write(b"[" if name.startswith("array") else b"")
            for _ in range(10 * MB // len(unit)):
                file.write(unit)
        assert (tmp_path / name).stat().st_size < 8 * MB / EXPANSION
        tracemalloc.start()
        with refuses(TooLarge, EXPANSION, at=name):
            for _ in read_rows(tmp_path / name):
                pass
        assert tracemalloc.get_traced_memory()[1] < 6 * MB
        tracemalloc.stop()


def test_a_line_an_item_and_a_document_have_a_largest_size(tmp_path, monkeypatch):
    monkeypatch.setattr(bounds, "RECORD", 2 * MB)
    monkeypatch.setattr(bounds, "DOCUMENT", 4 * MB)
    text = b'["' + b"x" * (4 * MB)
    for name in ("a.jsonl", "a.json"):
        (tmp_path / name).write_bytes(text)
    with refuses(TooLarge, "2 MB", at="a.jsonl:1"):
        list(read_jsonl(tmp_path / "a.jsonl"))
    with refuses(TooLarge, "4 MB", at="a.json"):
        read_json(tmp_path / "a.json")
    (tmp_path / "a.json").write_bytes(b"[" + text)
    with refuses(TooLarge, "2 MB", at="a.json:1"):
        list(read_rows(tmp_path / "a.json"))
