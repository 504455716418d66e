"""Parts of a sweep, merged, are the sweep."""

import pytest
from examples import kv_example
from places import but_for_seconds

from posgap.cli.main import main
from posgap.data.reading import write_examples
from posgap.data.synthetic import two_hop_examples
from posgap.foundation.errors import PosgapError
from posgap.foundation.files import read_json
from posgap.measurement.sweeps import read_sweep
from posgap.options.merge import MergeConfig
from posgap.options.sweep import SweepConfig
from posgap.verbs.merge import merge
from posgap.verbs.sweep import sweep_model

WRITTEN = ("sweep.json", "predictions.jsonl", "sweep.png", "sweep.html", "model_card.md")


@pytest.fixture
def sweeps(tmp_path, model_folder):
    """Sweeps the tiny model over five positions, or the part of them that `shard` names."""
    write_examples(tmp_path / "e.jsonl", [kv_example(i) for i in range(6)])

    def run(name, **more):
        config = SweepConfig(
            **{"examples": tmp_path / "e.jsonl", "model": str(model_folder), "n_docs": 5, "max_new_tokens": 1}
            | {"label": "tiny", "out": tmp_path / name}
            | more
        )
        return sweep_model(config)

    return run


def merged(tmp_path, *parts):
    return merge(MergeConfig(sweeps=parts, out=tmp_path / "merged"))


def same(one, other):
    return all(but_for_seconds(one / name) == but_for_seconds(other / name) for name in WRITTEN)


@pytest.mark.parametrize("shards", [("1/2", "2/2"), ("3/3", "1/3", "2/3"), ("1/1",)])
def test_merged_parts_are_byte_for_byte_the_sweep_at_once(sweeps, tmp_path, shards):
    whole = sweeps("whole")
    parts = [sweeps(f"part-{i}", shard=shard) for i, shard in enumerate(shards)]
    assert same(merged(tmp_path, *parts), whole)
    assert sum(len(read_json(part / "sweep.json")["placements"]) for part in parts) == 5
    seconds = [read_sweep(part).spent.seconds for part in parts]
    assert read_sweep(tmp_path / "merged").spent.seconds == pytest.approx(sum(seconds)) and min(seconds) > 0


def test_pairs_of_positions_keep_their_categories(sweeps, tmp_path, two_hop_folder):
    write_examples(tmp_path / "two-hop.jsonl", two_hop_examples(4, 20, seed=0))
    given = {"examples": tmp_path / "two-hop.jsonl", "model": str(two_hop_folder), "task": "multihop-cot", "n_docs": 20}
    given |= {"positions": ["1+2", "1+3", "2+1", "9+4"], "max_new_tokens": 2}
    whole = sweeps("whole", **given)
    parts = [sweeps(f"part-{i}", shard=f"{i}/2", **given) for i in (1, 2)]
    assert same(merged(tmp_path, *parts), whole)
    assert read_json(tmp_path / "merged" / "sweep.json")["by_category"].keys() == {
        "connected", "disconnected", "reversed"
    }  # fmt: skip


def test_sweeps_of_chosen_positions_merge_too(sweeps, tmp_path):
    whole = sweeps("whole", positions=["1", "2", "4"])
    parts = [sweeps("some", positions=["1", "2"]), sweeps("others", positions=["4"])]
    assert same(merged(tmp_path, *parts), whole)


def test_a_whole_sweep_alone_keeps_its_page_with_examples(sweeps, tmp_path):
    whole = sweeps("whole")
    assert but_for_seconds(merged(tmp_path, whole) / "sweep.html") == but_for_seconds(whole / "sweep.html")


def test_what_is_no_whole_is_refused_in_one_line(sweeps, tmp_path, capsys):
    first, second = (sweeps(f"{i}", shard=f"{i}/2") for i in (1, 2))
    with pytest.raises(PosgapError, match=r"shards 1/2: 2/2 "):
        merged(tmp_path, first)
    with pytest.raises(PosgapError, match=r"^shard \S+ "):
        merged(tmp_path, first, first)
    with pytest.raises(PosgapError, match=r"; label, max_new_tokens "):
        merged(tmp_path, first, sweeps("other", shard="2/2", label="else", max_new_tokens=2))
    with pytest.raises(PosgapError, match=r"^placement 2 "):
        merged(tmp_path, sweeps("a", positions=["1", "2"]), sweeps("b", positions=["2", "3"]))
    with pytest.raises(SystemExit):
        main(["merge", str(first), "--out", str(tmp_path / "out")])
    assert capsys.readouterr().err.splitlines()[-1].startswith("posgap: error: shards 1/2: 2/2 ")
    assert not (tmp_path / "out").exists() and (tmp_path / "2").exists() and second.exists()


@pytest.mark.parametrize("shard", ["3/2", "0/2", "1", "a/b", "1/2/3", "-1/2"])
def test_a_shard_that_is_none_is_refused(shard, sweeps):
    with pytest.raises(ValueError, match="\nshard\n.* 2/4 "):
        sweeps("none", shard=shard)
