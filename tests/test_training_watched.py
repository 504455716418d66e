"""Training that watches the gap of held-out examples: its curve, the best step, its end, and what it says."""

from types import SimpleNamespace

import pytest
import torch
from accelerate import DistributedType
from conftest import kv_example
from safetensors.torch import load_file

from posgap.distillation import processes
from posgap.distillation.batches import Collator, pair_up
from posgap.distillation.config import DistillConfig
from posgap.distillation.watching import Watch, require_whole_parameters, watched_placements
from posgap.foundation.errors import PosgapError
from posgap.foundation.files import read_json, read_jsonl, write_jsonl
from posgap.generation.setup import prompt_builder
from posgap.stages.distill import distill
from posgap.storage.folders import ResumableFolder
from posgap.tasks.content import content
from posgap.tasks.placements import Placement
from posgap.tasks.reading import write_examples
from posgap.tasks.responses import read_responses

FIGURES = {"mean", "gain", "gap", "worst", "best_position", "elsewhere", "fall"}


def responses(file, examples, token: int = 25):
    """Responses of one value to all of these examples, as if given with the gold document first of five."""
    said = {"placement": [1], "n_docs": 5, "response": f"{token - 25:x}", "token_ids": [token, 2], "correct": True}
    write_jsonl(file, ({"id": e.id, "content": content(e), **said} for e in examples))
    return file


@pytest.fixture
def config(tmp_path, model_folder):
    """Learns to say 0 to everything; 0 is the answer to all held-out questions."""
    examples = [kv_example(i) for i in range(6)]
    held_out = [kv_example(100 + i).model_copy(update={"answers": ["0"]}) for i in range(6)]
    write_examples(tmp_path / "e.jsonl", examples)
    write_examples(tmp_path / "held-out.jsonl", held_out)
    return DistillConfig(
        examples=tmp_path / "e.jsonl", responses=responses(tmp_path / "responses.jsonl", examples),
        model=str(model_folder), out=tmp_path / "out", method="seqkd", k=3, batch_size=9, epochs=6, learning_rate=1e-2,
        watch=tmp_path / "held-out.jsonl", watch_every=4, watch_placements=["2", "5"],
    )  # fmt: skip


def history(out) -> list[dict]:
    return [row for _, row in read_jsonl(out / "history.jsonl")]


def weights(out) -> dict[str, torch.Tensor]:
    return load_file(out / "model.safetensors")


def test_the_curve_of_held_out_examples_stands_in_the_history_and_changes_no_step(config, tmp_path):
    watched = history(distill(config))
    alone = history(distill(config.model_copy(update={"out": tmp_path / "alone", "watch": None})))
    assert len(watched) == len(alone) == 12
    assert [{n: row[n] for n in alone[0]} for row in watched] == alone
    swept = [row for row in watched if "held_out_gap" in row]
    assert [row["step"] for row in swept] == [4, 8, 12]
    assert all(row.keys() - alone[0].keys() == {f"held_out_{name}" for name in FIGURES} for row in swept)
    assert swept[-1]["held_out_mean"] == 100 and swept[-1]["held_out_gap"] == 0 and swept[-1]["held_out_gain"] > 0
    settings = [read_json(tmp_path / name / "generation_config.json") for name in ("out", "alone")]
    assert settings[0] == settings[1]
    # A step was chosen by them, so no gate is to judge by them.
    learnt = read_json(tmp_path / "out" / "training_examples.json")
    assert len(learnt) == 12 and len(read_json(tmp_path / "alone" / "training_examples.json")) == 6
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_the_last_examples_can_be_watched_and_are_then_not_learnt(config, tmp_path):
    config = config.model_copy(update={"epochs": 1, "watch": None, "watch_last": 2})
    watched = history(distill(config))
    assert "held_out_gap" in watched[-1]
    # As if they stood in files of their own.
    examples = [kv_example(i) for i in range(6)]
    write_examples(tmp_path / "rest.jsonl", examples[:4])
    write_examples(tmp_path / "last.jsonl", examples[4:])
    apart = {"examples": tmp_path / "rest.jsonl", "responses": responses(tmp_path / "r.jsonl", examples[:4])}
    apart |= {"watch": tmp_path / "last.jsonl", "watch_last": 0, "out": tmp_path / "apart"}
    assert history(distill(config.model_copy(update=apart))) == watched
    with pytest.raises(PosgapError, match="watch_last: 6 of 6 examples leave no response to learn; watch fewer"):
        distill(config.model_copy(update={"watch_last": 6, "out": tmp_path / "none"}))


def test_training_ends_when_the_gap_is_closed(config, caplog):
    with caplog.at_level("INFO", logger="posgap"):
        out = distill(config.model_copy(update={"epochs": 60, "stop_gap": 5.0}))
    rows = history(out)
    assert len(rows) < 120 and rows[-1]["held_out_gap"] <= 5 and rows[-1]["held_out_mean"] > 90
    assert f"training ends after step {len(rows)} of 120: the held-out gap is " in caplog.text


def test_the_best_step_is_written_where_later_ones_are_worse(config, tmp_path, caplog):
    base = distill(config.model_copy(update={"watch": None, "out": tmp_path / "says-0"}))
    away = responses(tmp_path / "away.jsonl", [kv_example(i) for i in range(6)], token=30)
    other = {"model": str(base), "responses": away, "watch_every": 1, "learning_rate": 3e-3, "warmup_steps": 6}
    with caplog.at_level("INFO", logger="posgap"):
        out = distill(config.model_copy(update=other))
    rows = history(out)
    assert rows[0]["held_out_mean"] == 100 and rows[-1]["held_out_mean"] < 50
    assert "held out: step 1 of 12 is the best and is kept: mean 100.0, gap 0.0" in caplog.messages
    once = distill(config.model_copy(update={**other, "out": tmp_path / "once", "max_hours": 1e-9}))
    assert len(history(once)) == 1  # then time is over
    assert all(torch.equal(weights(once)[name], tensor) for name, tensor in weights(out).items())


def test_a_run_that_goes_on_goes_on_with_its_curve_and_its_best(config, tmp_path, monkeypatch):
    config = config.model_copy(update={"save_steps": 3, "watch_every": 2})
    whole, after = distill(config), Watch.after

    def killed(self, step, *rest):
        if step == 8:
            raise KeyboardInterrupt
        return after(self, step, *rest)

    broken = config.model_copy(update={"out": tmp_path / "broken"})
    monkeypatch.setattr(Watch, "after", killed)
    with pytest.raises(KeyboardInterrupt):
        distill(broken)
    monkeypatch.setattr(Watch, "after", after)
    # How training is watched may change; the steps are the same.
    distill(broken.model_copy(update={"max_hours": 24.0}))
    rows = [{name: value for name, value in row.items() if name != "hours"} for row in history(tmp_path / "broken")]
    assert rows == history(whole)
    assert all(torch.equal(weights(whole)[n], tensor) for n, tensor in weights(tmp_path / "broken").items())


def test_a_full_disk_leaves_the_best_step_that_was_kept(config, monkeypatch, caplog):
    saved, save = [], torch.save

    def full(state, file, *more):
        saved.append(file)
        if len(saved) > 1:
            raise OSError(28, "No space left on device")
        save(state, file, *more)

    monkeypatch.setattr(torch, "save", full)
    with caplog.at_level("INFO", logger="posgap"):
        out = distill(config.model_copy(update={"watch_every": 1, "save_steps": 0}))
    assert "held out: step 1 of 12 is the best and is kept" in caplog.text and len(history(out)) == 12
    assert "is the best so far, and could not be kept whole in " in caplog.text and len(saved) > 1


def test_what_is_learnt_by_heart_is_said(config, tmp_path, caplog):
    held_out = [kv_example(100 + i).model_copy(update={"answers": ["f"]}) for i in range(6)]
    write_examples(tmp_path / "other.jsonl", held_out)
    by_heart = {
        "method": "sft",
        "epochs": 30,
        "learning_rate": 5e-3,
        "batch_size": 18,
        "watch": tmp_path / "other.jsonl",
    }
    distill(config.model_copy(update={**by_heart, "watch_every": 30}))
    (line,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert line.startswith("training fits, held-out does not: ") and line.endswith("; more examples")


@pytest.fixture
def watch(config):
    examples = [kv_example(i) for i in range(6)]
    pairs = pair_up(examples, read_responses(config.responses))
    collate = Collator(pairs, prompt_builder("kv", config.model, 2))
    accelerator = processes.accelerator()
    return lambda **update: Watch(
        config.model_copy(update=update),
        examples,
        collate,
        accelerator,
        ResumableFolder(config.out / "kept"),
        False,
        load=lambda: None,
    )


def row(gap=50.0, fall=0.0, gain=10.0, **more):
    return {"step": 4, "held_out_gap": gap, "held_out_fall": fall, "held_out_gain": gain, **more}


@pytest.mark.parametrize(
    "update, rows, reason",
    [
        ({}, [row(0.0)], ""),  # nothing was asked for
        ({"stop_gap": 5.0}, [], ""),
        ({"stop_gap": 5.0}, [row(5.0)], "the held-out gap is 5.0, and 5 was asked for"),
        ({"stop_gap": 5.0}, [row(5.1)], ""),
        ({"stop_gap": 5.0}, [row(5.0), {"step": 5}], ""),  # not swept again since
        ({"stop_gap": 5.0}, [row(0.0, gain=-1.0)], ""),  # right nowhere is no gap
        ({"stop_gap": 5.0}, [row(0.0, fall=2.1)], ""),
        ({"stop_gap": 5.0}, [row(fall=2.0), row(fall=2.0)], ""),
        ({"stop_gap": 5.0}, [row(fall=3.0), row(fall=4.0)], "position 1 has fallen by 4.0 for certain"),
        ({"stop_gap": 5.0}, [row(fall=3.0), row(), row(fall=4.0)], ""),
        ({"max_hours": 2.0}, [{"step": 1, "hours": 1.9}], ""),
        ({"max_hours": 2.0}, [{"step": 1, "hours": 2.0}], "2 hours are over"),
    ],
)
def test_when_training_ends_can_be_read_off_its_history(update, rows, reason, watch):
    assert watch(**update).over(rows) == reason


def test_hours_of_a_run_that_went_on_are_added_up(watch):
    watched = watch(max_hours=9.0)
    first = watched.after(5, False, [{"step": 4, "hours": 3.0}], None)["hours"]
    second = watched.after(6, False, [{"step": 4, "hours": 3.0}, {"step": 5, "hours": first}], None)["hours"]
    assert 3 < first < second < 3.1


def test_placements_are_spread_and_the_teacher_s_is_the_first(config):
    def named(n_docs, at, chosen=()):
        at = at if isinstance(at, list) else [at]
        task = "kv" if len(at[0]) == 1 else "multihop-cot"
        given = config.model_copy(update={"watch_placements": list(chosen), "task": task})
        return [p.positions for p in watched_placements(given, [Placement(positions, n_docs) for positions in at])]

    assert named(20, (1,)) == [(1,), (6,), (10,), (15,), (20,)]
    assert named(20, (20,)) == [(20,), (1,), (6,), (10,), (15,)]
    assert named(3, (2,)) == [(2,), (1,), (3,)] and named(1, (1,)) == [(1,)]
    assert named(20, (1,), ["7", "1"]) == [(1,), (7,)]
    assert named(5, (4, 5), ["1+2"]) == [(4, 5), (1, 2)]
    assert named(20, [(1,), (20,)]) == [(1,), (20,), (6,), (10,), (15,)]


@pytest.mark.parametrize(
    "update, message",
    [
        ({"watch": None, "stop_gap": 5.0}, "stop_gap: the gap is that of held-out examples; give them with --watch"),
        ({"watch_placements": ["6"]}, "6"),
        ({"watch_placements": ["1+2"]}, "gold"),
    ],
)
def test_bad_input(update, message, config):
    with pytest.raises(PosgapError, match=message):
        distill(config.model_copy(update=update))


def test_what_is_trained_on_is_not_held_out(config, tmp_path):
    again = [kv_example(7), kv_example(3).model_copy(update={"id": "another-name"})]
    write_examples(tmp_path / "same.jsonl", again)
    with pytest.raises(
        PosgapError, match="1 of 2 examples are trained on, the first of them another-name; watch others"
    ):
        distill(config.model_copy(update={"watch": tmp_path / "same.jsonl"}))
    # Nor is what the model has learnt before.
    first = distill(config.model_copy(update={"watch": None, "out": tmp_path / "first"}))
    write_examples(tmp_path / "other.jsonl", [kv_example(50 + i) for i in range(6)])
    learning = {"examples": tmp_path / "other.jsonl", "model": str(first)}
    learning["responses"] = responses(tmp_path / "r.jsonl", [kv_example(50 + i) for i in range(6)])
    with pytest.raises(PosgapError, match="are trained on"):
        distill(config.model_copy(update={**learning, "watch": tmp_path / "same.jsonl", "out": tmp_path / "second"}))


def test_parameters_in_pieces_are_not_watched_in_the_training_of_others():
    def held(kind, stage=None):
        plugin = None if stage is None else SimpleNamespace(zero_stage=stage)
        return SimpleNamespace(distributed_type=kind, state=SimpleNamespace(deepspeed_plugin=plugin))

    require_whole_parameters(held(DistributedType.MULTI_CPU), "callback")
    require_whole_parameters(held(DistributedType.DEEPSPEED, 2), "callback")
    for pieces in (held(DistributedType.FSDP), held(DistributedType.DEEPSPEED, 3)):
        with pytest.raises(PosgapError, match="each must hold them whole to answer; take --deepspeed zero2"):
            require_whole_parameters(pieces, "callback")
