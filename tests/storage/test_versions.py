"""Which data version is the newest."""

from datetime import date

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refuses
from s3 import put

from posgap.cli.main import main
from posgap.foundation.errors import BadOption, NotFound
from posgap.storage.versions import newest, parse_version


def write(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return f"{folder}/"


def fill(bucket, *keys):
    for key in keys:
        put(f"{bucket}/{key}")


@pytest.mark.parametrize(
    "name, version",
    [
        ("train-2026-11-20.jsonl.gz", "2026-11-20"),
        ("v=2026-11-20/", "2026-11-20"),
        ("kv-75_keys-2026-11-20T06-30Z.jsonl", "2026-11-20T06-30Z"),
        ("v1.10.0/", "1.10.0"),
        ("version=7/", "7"),
        ("20261120.jsonl", "20261120"),
        ("README.md", None),
        ("data7", None),
        ("2026-11-20-eval.jsonl", None),
        ("train-2026-13-01.jsonl", None),
        ("v1.2.0-rc1/", None),
        (".partial-1-v2/", None),
    ],
)
def test_a_version_is_a_date_or_a_number_at_the_end_of_a_name(name, version):
    found = parse_version("s3://bucket/data/", name)
    assert (found.name if found else None) == version
    assert found is None or found.location == f"s3://bucket/data/{name.rstrip('/')}"


DATES = st.dates(date(2020, 1, 1), date(2030, 12, 31)).map(str)
MARKERS = st.sampled_from(["", "manifest.json", "_SUCCESS"])
NUMBERS = st.tuples(*[st.integers(0, 12)] * 3).map(lambda parts: ".".join(map(str, parts)))


@settings(max_examples=40, deadline=None)
@given(
    versions=st.one_of(DATES, NUMBERS).flatmap(
        lambda one: st.dictionaries(
            DATES if "-" in one else NUMBERS, st.sampled_from(["", "manifest.json", "_SUCCESS"])
        )
    ),
    data=st.data(),
)
def test_the_newest_is_the_highest_complete_one_in_whatever_order_they_were_written(tmp_path_factory, versions, data):
    folder = tmp_path_factory.mktemp("data")
    for version in data.draw(st.permutations(sorted(versions))):
        write(folder, f"v={version}/part-0", *([f"v={version}/{marker}"] if (marker := versions[version]) else []))
    complete = [version for version, marker in versions.items() if marker]
    if not complete:
        with pytest.raises(NotFound):
            newest(f"{folder}/")
        return
    highest = max(complete, key=lambda v: [int(part) for part in v.replace("-", ".").split(".")])
    assert newest(f"{folder}/").location == folder / f"v={highest}" and newest(f"{folder}/v=").name == highest


def test_in_s3_too_folders_count_when_complete_and_files_at_once(bucket):
    fill(bucket, "data/", "data/v=2026-11-20/_SUCCESS", "data/v=2026-11-20/train.jsonl", "data/notes.txt")
    fill(bucket, "data/v=2026-11-27/train.jsonl", "data/v=2026-12-04/manifest.json", "data/v=2026-12-04/.incomplete")
    assert newest(f"{bucket}/data/").location == f"{bucket}/data/v=2026-11-20" == newest(f"{bucket}/data").location
    fill(bucket, "data/v=2026-11-27/manifest.json")
    assert newest(f"{bucket}/data/").name == "2026-11-27"
    fill(bucket, "files/train-2026-11-20.jsonl.gz", "files/train-2026-11-06.jsonl.gz", "files/eval-2026-12-01.jsonl.gz")
    found = newest(f"{bucket}/files/train-")
    assert found.location == f"{bucket}/files/train-2026-11-20.jsonl.gz" and not found.is_folder


def test_what_holds_no_versions_is_the_only_one(bucket, tmp_path):
    fill(bucket, "train.jsonl", "run/train/examples.jsonl.gz", "run/train/manifest.json", "v=2/x", "v=2/_SUCCESS")
    assert newest(f"{bucket}/train.jsonl").location == f"{bucket}/train.jsonl"
    assert newest(f"{bucket}/run/train").location == f"{bucket}/run/train" == newest(f"{bucket}/run/train/").location
    assert newest(f"{bucket}/v=2").name == "2"
    write(tmp_path, "train.jsonl")
    assert newest(f"{tmp_path}/train.jsonl").location == tmp_path / "train.jsonl"


@pytest.mark.parametrize(
    "names, kind, named",
    [
        ([], NotFound, []),
        (["notes.txt"], NotFound, []),
        (["v1/x", "v2/x"], NotFound, ["of 2 "]),
        (["train-1.jsonl", "eval-1.jsonl"], BadOption, ["(eval-, train-)"]),
        (["2026-11-20.jsonl", "7.jsonl"], BadOption, []),
        (["train-7.jsonl", "train-7.jsonl.gz"], BadOption, ["train-7.jsonl and ", "train-7.jsonl.gz "]),
    ],
)
def test_what_leaves_open_which_is_newest_is_refused(tmp_path, names, kind, named):
    with refuses(kind, *named):
        newest(write(tmp_path, *names))


def test_the_verb_prints_where_it_is(bucket, capsys):
    fill(bucket, "data/v1.9.0/_SUCCESS", "data/v1.10.0/_SUCCESS")
    with pytest.raises(SystemExit) as ended:
        main(["data", "version", f"{bucket}/data/"])
    assert ended.value.code == 0 and capsys.readouterr().out == f"{bucket}/data/v1.10.0\n"
    with pytest.raises(SystemExit) as ended:
        main(["data", "version", "s3://no-such-bucket/data/"])
    assert ended.value.code == 2
    assert "error: s3://no-such-bucket/data/: there is no such bucket" in capsys.readouterr().err
