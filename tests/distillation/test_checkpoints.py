"""Checkpoints: what is saved goes on as if nothing had been, and what is not whole does not count."""

import json
import logging
import os
import random
import resource
import shutil
from threading import Event

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from accelerate import Accelerator
from botocore.exceptions import ClientError
from hypothesis import given
from hypothesis import strategies as st
from s3 import elsewhere, keys, put
from torch import nn
from training_processes import PARAMETERS, two_processes

from posgap.distillation.checkpoints import FILES, Checkpoints, _delete_folder, _rename_folder, share_out
from posgap.foundation import files
from posgap.foundation.errors import PosgapError
from posgap.foundation.files import read_object
from posgap.storage.folders import ResumableFolder
from posgap.storage.manifests import hash_files

STATE = [PARAMETERS.replace("model-00001", f"model-0000{kind}") for kind in (1, 2, 3, 4)]
# Of two processes that train alike each writes its share.
SHARED = [STATE[0], STATE[2], *(STATE[kind].replace("shard-00001", "shard-00002") for kind in (0, 1, 3))]
HISTORY = [{"step": 1, "loss": 0.5}, {"step": 2, "loss": 0.25}]


class Training:
    """Six numbers that an optimizer moves by what every random number generator draws."""

    def __init__(self, checkpoints: Checkpoints, steps: int = 0):
        for seed in (torch.manual_seed, random.seed, np.random.seed):
            seed(0)
        self.checkpoints, self.accelerator = checkpoints, Accelerator(cpu=True)
        self.model = nn.Linear(2, 2)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.go_on(steps)

    def go_on(self, steps: int) -> torch.Tensor:
        for _ in range(steps):
            for parameter in self.model.parameters():
                parameter.grad = torch.randn(parameter.shape) * random.random() * float(np.random.random())
            self.optimizer.step()
        return torch.cat([parameter.detach().flatten() for parameter in self.model.parameters()])

    def save(self, step: int, history=HISTORY) -> None:
        self.checkpoints.save(step, self.accelerator, self.model, self.optimizer, history)
        self.checkpoints.wait()

    def load(self) -> list:
        return self.checkpoints.load(self.accelerator, self.model, self.optimizer)


@pytest.fixture
def checkpoints(tmp_path) -> Checkpoints:
    return Checkpoints(tmp_path / "c")


def test_training_goes_on_as_if_nothing_had_been(checkpoints):
    training = Training(checkpoints, 3)
    training.save(3)
    expected = training.go_on(4)
    again = Training(checkpoints, 1)
    assert again.load() == HISTORY
    assert torch.equal(again.go_on(4), expected)


def test_the_random_numbers_of_every_gpu_go_on_too(checkpoints, monkeypatch):
    """Read and set by stand-ins, since there need be no GPU where this runs."""
    drawn = [torch.tensor([1, 2], dtype=torch.uint8), torch.tensor([3, 4], dtype=torch.uint8)]
    restored = []
    monkeypatch.setattr("torch.cuda.get_rng_state_all", lambda: drawn)
    monkeypatch.setattr("torch.cuda.set_rng_state_all", restored.extend)
    training = Training(checkpoints)
    training.save(1)
    training.load()
    assert [state.tolist() for state in restored] == [[1, 2], [3, 4]]


def test_what_another_node_has_deleted_or_renamed_already_is_no_fault(tmp_path):
    _delete_folder(tmp_path / "step-1")
    with pytest.raises(FileNotFoundError):
        _rename_folder(tmp_path / ".partial-1", tmp_path / "step-1")
    (tmp_path / "step-1").mkdir()
    _rename_folder(tmp_path / ".partial-1", tmp_path / "step-1")


def test_without_a_checkpoint_nothing_changes(checkpoints, caplog):
    training, twin = Training(checkpoints, 2), Training(checkpoints, 2)
    state = torch.get_rng_state()
    with caplog.at_level(logging.INFO, logger="posgap"):
        assert training.load() == [] and checkpoints.latest() == 0
    assert torch.equal(torch.get_rng_state(), state) and torch.equal(training.go_on(0), twin.go_on(0))
    assert not caplog.records


def test_the_newest_two_are_kept_and_one_alone_while_another_is_written(checkpoints, monkeypatch):
    training, seen = Training(checkpoints), []
    write = torch.save

    def watched(*arguments):
        seen.append({path.name for path in checkpoints.folder.iterdir()})
        write(*arguments)

    monkeypatch.setattr("torch.save", watched)
    for step, kept in ((2, {"step-2"}), (9, {"step-2", "step-9"}), (10, {"step-9", "step-10"})):
        training.save(step)
        assert {path.name for path in checkpoints.folder.iterdir()} == kept
        assert checkpoints.latest() == step
    assert seen[-1] == {"step-9", ".partial-10"} and max(map(len, seen)) == 2
    assert sorted(path.name for path in (checkpoints.folder / "step-10").iterdir()) == [
        FILES, "history.jsonl", "random-0.pt", *STATE
    ]  # fmt: skip
    checkpoints.remove()
    assert checkpoints.latest() == 0 and not checkpoints.folder.exists()


def two_steps(checkpoints) -> torch.Tensor:
    """Leaves the checkpoints of steps 9 and 10; returns the state at 9."""
    training = Training(checkpoints, 1)
    training.save(9, HISTORY[:1])
    at_nine = training.go_on(0).clone()
    training.go_on(1)
    training.save(10)
    return at_nine


@pytest.mark.parametrize("missing", [FILES, "history.jsonl", "random-0.pt", PARAMETERS])
def test_a_checkpoint_that_lacks_a_file_does_not_count(missing, checkpoints):
    at_nine = two_steps(checkpoints)
    assert checkpoints.latest() == 10
    (checkpoints.folder / "step-10" / missing).unlink()
    assert checkpoints.latest() == 9
    training = Training(checkpoints)
    assert training.load() == HISTORY[:1]
    assert torch.equal(training.go_on(0), at_nine)


def flip(file) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


DAMAGE = {
    "truncated": lambda folder: os.truncate(folder / PARAMETERS, 100),
    "emptied": lambda folder: os.truncate(folder / "random-0.pt", 0),
    "one bit": lambda folder: flip(folder / PARAMETERS),
    "no list": lambda folder: (folder / FILES).write_text("{"),
    "a list of before": lambda folder: (folder / FILES).write_text('["history.jsonl"]'),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_checkpoint_is_passed_over_for_the_last_good_one(damage, checkpoints, caplog):
    at_nine = two_steps(checkpoints)
    DAMAGE[damage](checkpoints.folder / "step-10")
    training = Training(checkpoints)
    assert training.load() == HISTORY[:1] and torch.equal(training.go_on(0), at_nine)
    assert (f"step-10: {PARAMETERS} is damaged; this checkpoint is skipped" in caplog.text) == (damage == "one bit")
    DAMAGE[damage](checkpoints.folder / "step-9")
    assert Training(checkpoints).load() == []


def test_a_damaged_checkpoint_is_fetched_again_where_s3_has_it_whole(remote):
    training = Training(Checkpoints(ResumableFolder(remote)), 3)
    training.save(3)
    expected = training.go_on(2)
    flip(training.checkpoints.folder / "step-3" / PARAMETERS)
    again = Training(Checkpoints(ResumableFolder(remote)))
    assert again.load() == HISTORY and torch.equal(again.go_on(2), expected)


def test_a_checkpoint_damaged_in_s3_too_is_deleted_and_the_one_before_is_used(remote):
    checkpoints = Checkpoints(ResumableFolder(remote))
    at_nine = two_steps(checkpoints)
    file = checkpoints.folder / "step-10" / PARAMETERS
    flip(file)
    put(f"{remote}/step-10/{PARAMETERS}", file.read_bytes())
    put(f"{remote}/step-2/history.jsonl")
    again = Training(Checkpoints(ResumableFolder(remote)))
    assert again.load() == HISTORY[:1] and torch.equal(again.go_on(0), at_nine)
    assert in_s3(remote) == ["step-2/history.jsonl"]


def test_where_no_checkpoint_is_whole_a_warning_says_so(checkpoints, caplog):
    Training(checkpoints).save(3)
    (checkpoints.folder / "step-3" / PARAMETERS).unlink()
    assert Training(checkpoints).load() == []
    assert "no whole checkpoint; without a shared disk `work` must be in S3" in caplog.text


def test_what_a_killed_process_left_is_not_taken_along(checkpoints):
    for name in (".partial-4", "step-1", "step-4"):
        (checkpoints.folder / name / "engine").mkdir(parents=True)
        (checkpoints.folder / name / "engine" / "left.pt").write_text("left")
    training = Training(checkpoints, 1)
    training.save(4)
    assert checkpoints.latest() == 4 and not list(checkpoints.folder.rglob("left.pt"))
    again = Training(checkpoints)
    assert again.load() == HISTORY and torch.equal(again.go_on(0), training.go_on(0))


@pytest.mark.parametrize(("before", "kept"), [(2, ".* step 2 "), (0, r"\D*$")])
def test_where_the_disk_is_full_the_older_one_stays(before, kept, checkpoints):
    training = Training(checkpoints)
    if before:
        training.save(before)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))  # writes fail beyond that size
    try:
        with pytest.raises(PosgapError, match=rf"step-4: .*\(.+\); {kept}"):
            training.save(4)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [path.name for path in checkpoints.folder.iterdir()] == [f"step-{before}"] * bool(before)


class Evil:
    def __reduce__(self):
        return os.mkdir, ("evil",)


@pytest.mark.parametrize("name", [PARAMETERS, "random-0.pt"])
def test_loading_a_checkpoint_runs_no_code(name, checkpoints, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Training(checkpoints).save(1)
    folder = checkpoints.folder / "step-1"
    torch.save({"model": Evil()}, folder / name)
    (folder / FILES).write_text(json.dumps(hash_files(folder, set(read_object(folder / FILES)))))
    with pytest.raises(Exception, match="[Ww]eights.only|step-1: .*header"):
        Training(checkpoints).load()
    assert not (tmp_path / "evil").exists()


def test_a_checkpoint_is_on_the_disk_before_it_counts(checkpoints, monkeypatch):
    """So that a power failure leaves none that counts and lacks a file."""
    steps, fsync, rename = [], os.fsync, os.rename

    def flushed(file):
        steps.append(os.path.relpath(os.readlink(f"/proc/self/fd/{file}"), checkpoints.folder))
        fsync(file)

    def renamed(*paths):
        steps.append("renamed")
        rename(*paths)

    monkeypatch.setattr("os.fsync", flushed)
    monkeypatch.setattr("os.rename", renamed)
    Training(checkpoints).save(5)
    before, after = steps[: steps.index("renamed")], steps[steps.index("renamed") + 1 :]
    assert after == ["."]
    listed = next(i for i, name in enumerate(before) if name.endswith(FILES))
    assert {f".partial-5/{name}" for name in (*STATE, "history.jsonl", "random-0.pt")} <= {*before[:listed]}
    assert ".partial-5" in before[listed:]


# Beside training


def test_training_during_the_writing_does_not_change_a_checkpoint(checkpoints, monkeypatch):
    write, resumable = dcp.save, Event()

    def later(*arguments, **named):
        assert resumable.wait(20)
        write(*arguments, **named)

    monkeypatch.setattr("torch.distributed.checkpoint.save", later)
    training = Training(checkpoints, 3)
    checkpoints.save(3, training.accelerator, training.model, training.optimizer, HISTORY)
    expected = training.go_on(4)
    assert checkpoints.latest() == 0
    resumable.set()
    checkpoints.wait()
    again = Training(checkpoints)
    assert again.load() == HISTORY and torch.equal(again.go_on(4), expected)


def test_what_ends_a_block_is_said_before_a_checkpoint_that_could_not_be_written(checkpoints, monkeypatch, caplog):
    def full(*_, **__):
        raise OSError("No space left on device")

    monkeypatch.setattr("torch.distributed.checkpoint.save", full)
    training = Training(checkpoints)
    with pytest.raises(ZeroDivisionError), checkpoints:
        checkpoints.save(3, training.accelerator, training.model, training.optimizer, HISTORY)
        raise ZeroDivisionError
    assert "(No space left on device)" in caplog.text
    with pytest.raises(PosgapError, match="No space left on device"), checkpoints:
        checkpoints.save(3, training.accelerator, training.model, training.optimizer, HISTORY)


# In S3


@pytest.fixture
def remote(bucket) -> str:
    return f"{bucket}/work"


def in_s3(uri: str) -> list[str]:
    return [key.removeprefix("work/") for key in keys(uri)]


def test_on_another_machine_training_goes_on_from_s3(remote, tmp_path, monkeypatch, caplog):
    training = Training(Checkpoints(ResumableFolder(remote)), 3)
    for step in (3, 5):
        training.save(step)
        assert in_s3(remote) == [f"step-{step}/{n}" for n in (FILES, "history.jsonl", "random-0.pt", *STATE)]
    expected = training.go_on(2)
    elsewhere(tmp_path, monkeypatch)
    again = Training(Checkpoints(ResumableFolder(remote)))
    assert again.checkpoints.latest() == 0
    with caplog.at_level(logging.INFO, logger="posgap"):
        assert again.load() == HISTORY
    assert f"fetching the checkpoint of step 5 from {remote}" in caplog.text
    assert torch.equal(again.go_on(2), expected)
    again.checkpoints.remove()
    assert in_s3(remote) == [] and again.checkpoints.latest() == 0


def test_what_is_here_is_not_fetched(remote, s3_calls):
    training = Training(Checkpoints(ResumableFolder(remote)), 3)
    training.save(3)
    expected = training.go_on(2)
    s3_calls.clear()
    again = Training(Checkpoints(ResumableFolder(remote)))
    assert again.load() == HISTORY and torch.equal(again.go_on(2), expected)
    assert s3_calls.keys("GetObject") == []


def test_of_two_states_the_newer_counts(remote, tmp_path, monkeypatch):
    first = Training(Checkpoints(ResumableFolder(remote)), 1)
    first.save(1)
    monkeypatch.setenv("POSGAP_CACHE", str(tmp_path / "another"))
    second = Training(Checkpoints(ResumableFolder(remote)))
    second.load()
    second.go_on(1)
    second.save(2)
    expected = second.go_on(0)
    monkeypatch.setenv("POSGAP_CACHE", str(tmp_path / "cache"))
    again = Training(Checkpoints(ResumableFolder(remote)))
    assert again.checkpoints.latest() == 1
    again.load()
    assert torch.equal(again.go_on(0), expected)


def test_the_newest_that_s3_has_whole_is_fetched(remote, tmp_path, monkeypatch):
    """Of step 5 the upload broke off; that of step 3 could not be deleted when step 4 was there."""
    folder = Checkpoints(ResumableFolder(remote)).folder
    states = {}
    for step in (3, 4, 5):
        training = Training(Checkpoints(folder), step)
        training.save(step)
        states[step] = training.go_on(0)
        for file in (folder / f"step-{step}").iterdir():
            if (step, file.name) != (5, FILES):
                put(f"{remote}/step-{step}/{file.name}", file.read_bytes())
    elsewhere(tmp_path, monkeypatch)
    again = Training(Checkpoints(ResumableFolder(remote)))
    assert again.load() == HISTORY and torch.equal(again.go_on(0), states[4])


def refused(*_) -> ClientError:
    return ClientError({"Error": {"Code": "AccessDenied", "Message": "no"}}, "PutObject")


@pytest.mark.parametrize("name", [PARAMETERS, FILES])
def test_what_cannot_be_uploaded_is_told_and_the_older_one_in_s3_stays(name, remote, s3_calls, caplog):
    training = Training(Checkpoints(ResumableFolder(remote)), 1)
    training.save(1)
    s3_calls.fail = lambda op, key: refused() if op == "PutObject" and key.endswith(f"step-2/{name}") else None
    training.save(2)
    assert "checkpoint step-2 is on disk only: " in caplog.text and "access denied" in caplog.text
    assert training.checkpoints.latest() == 2
    assert f"step-1/{FILES}" in in_s3(remote) and f"step-2/{FILES}" not in in_s3(remote)
    s3_calls.fail = lambda op, key: None
    training.save(3)
    assert {key.partition("/")[0] for key in in_s3(remote)} == {"step-3"}


def test_a_checkpoint_that_is_made_again_is_not_whole_in_s3_until_all_of_it_is_there(remote, s3_calls):
    training = Training(Checkpoints(ResumableFolder(remote)), 1)
    training.save(1)
    shutil.rmtree(training.checkpoints.folder)
    s3_calls.clear()
    training.save(1)
    calls = [(op, key.rpartition("/")[2]) for op, key in s3_calls.made if op.startswith(("Put", "Delete"))]
    assert calls[0][0].startswith("Delete") and calls[-1] == ("PutObject", FILES)


names = st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=8, unique=True)


@given(st.lists(names, min_size=1, max_size=4))
def test_every_file_is_uploaded_once_by_a_process_that_sees_it(seen):
    spread = share_out(seen)
    assert sorted(name for share in spread for name in share) == sorted({name for each in seen for name in each})
    assert all(set(share) <= set(each) for share, each in zip(spread, seen))
    together = share_out([seen[0]] * 3)
    assert max(map(len, together)) - min(map(len, together)) <= 1  # on a shared disk they share the work


def test_every_process_finds_the_same_shares():
    """Though sets of names have another order in each."""
    assert share_out([list("hgfedcba")]) == [list("abcdefgh")]
    assert share_out([list("hgfedcba"), list("abcdefgh")]) == [list("aceg"), list("bdfh")]


# Two processes


def resumable(training: Training, rank: int) -> None:
    """Asserts that this process's random numbers and parameters are those of the checkpoint."""
    torch.manual_seed(rank)
    drawn = torch.randn(3)
    torch.manual_seed(7)
    assert training.load() == HISTORY
    assert torch.equal(torch.randn(3), drawn)
    assert training.model.weight.detach().tolist() == [[1.0, 1.0], [1.0, 1.0]]


def saves(training: Training, rank: int, step: int) -> None:
    nn.init.constant_(training.model.weight, 1.0)
    torch.manual_seed(rank)
    training.save(step)
    nn.init.constant_(training.model.weight, 9.0)


@pytest.mark.parametrize("slow", [0, 1])
@pytest.mark.parametrize("apart", [False, True], ids=["of one machine", "of two machines"])
def test_processes_that_share_a_disk_write_one_checkpoint(apart, slow, tmp_path):
    def body(rank):
        training = Training(Checkpoints(tmp_path / "c"))
        for step in (2, 4):
            saves(training, rank, step)
            assert training.checkpoints.latest() == step
        resumable(training, rank)

    two_processes(tmp_path, body, apart, slow)
    assert {path.name for path in (tmp_path / "c").iterdir()} == {"step-2", "step-4"}
    last = sorted(path.name for path in (tmp_path / "c" / "step-4").iterdir())
    assert last == [FILES, "history.jsonl", "random-0.pt", "random-1.pt", *SHARED]
    (tmp_path / "c" / "step-4" / "random-1.pt").unlink()
    assert Checkpoints(tmp_path / "c").latest() == 2  # a checkpoint is not whole without every process's part


def test_each_file_is_hashed_by_one_process(tmp_path):
    def body(rank):
        digest = files.digest_path

        def noted(path):
            with open(tmp_path / f"hashed-{rank}", "a") as log:
                log.write(f"{path.name}\n")
            return digest(path)

        files.digest_path = noted
        training = Training(Checkpoints(tmp_path / "c"))
        saves(training, rank, 2)
        resumable(training, rank)

    two_processes(tmp_path, body)
    hashed = [(tmp_path / f"hashed-{rank}").read_text().split() for rank in (0, 1)]
    assert sorted(hashed[0] + hashed[1]) == sorted(["history.jsonl", "random-0.pt", "random-1.pt", *SHARED] * 2)
    assert not set(hashed[0]) & set(hashed[1])


@pytest.mark.full
def test_machines_without_a_shared_disk_put_theirs_together_in_s3(remote, tmp_path):
    def save(rank):
        training = Training(Checkpoints(ResumableFolder(remote)))
        for step in (2, 4):
            saves(training, rank, step)
        assert training.checkpoints.latest() == 0  # neither has all of it

    def load(rank):
        training = Training(Checkpoints(ResumableFolder(remote)))
        resumable(training, rank)
        assert training.checkpoints.latest() == 4

    two_processes(tmp_path, save, apart=True)
    expected = [FILES, "history.jsonl", "random-0.pt", "random-1.pt", *SHARED]
    assert in_s3(remote) == [f"step-4/{name}" for name in expected]
    two_processes(tmp_path, load, apart=True)
    shutil.rmtree(tmp_path / "machine-1")
    two_processes(tmp_path, load, apart=True)  # one machine has it, the other one not


@pytest.mark.full
@pytest.mark.parametrize("slow", [0, 1])
def test_one_process_of_a_machine_fetches_for_the_others(slow, remote, tmp_path, monkeypatch):
    two_processes(tmp_path, lambda rank: saves(Training(Checkpoints(ResumableFolder(remote))), rank, 2))
    elsewhere(tmp_path, monkeypatch)
    two_processes(tmp_path, lambda rank: resumable(Training(Checkpoints(ResumableFolder(remote))), rank), slow=slow)


def test_the_first_process_alone_asks_s3_what_it_has(remote, tmp_path):
    def body(rank):
        assert Training(Checkpoints(ResumableFolder("s3://nowhere/work" if rank else remote))).load() == []

    two_processes(tmp_path, body, apart=True)


def test_without_s3_machines_cannot_go_on(tmp_path):
    def body(rank):
        training = Training(Checkpoints(tmp_path / f"disk-{rank}"))
        saves(training, rank, 2)
        assert training.load() == []

    two_processes(tmp_path, body, apart=True)


def test_processes_go_on_from_what_all_of_them_have(tmp_path):
    for rank, steps in enumerate([(2, 4), (2,)]):
        checkpoints = Checkpoints(tmp_path / f"disk-{rank}")
        for step in steps:
            training = Training(Checkpoints(tmp_path / f"made-{rank}-{step}"))
            nn.init.constant_(training.model.weight, step)
            training.save(step)
            made = training.checkpoints.folder / f"step-{step}"
            shutil.copy(made / "random-0.pt", made / "random-1.pt")
            shutil.copytree(made, checkpoints.folder / made.name)

    def body(rank):
        training = Training(Checkpoints(tmp_path / f"disk-{rank}"))
        training.load()
        assert training.model.weight.unique().tolist() == [2.0]

    two_processes(tmp_path, body, apart=True)


def test_an_upload_that_fails_in_one_process_is_told_by_the_first(remote, tmp_path):
    def body(rank):
        training, heard = Training(Checkpoints(ResumableFolder(remote if rank == 0 else "s3://nowhere/work"))), []
        handler = logging.Handler()
        handler.emit = lambda record: heard.append(record.getMessage())
        logging.getLogger("posgap.distillation.checkpoints").addHandler(handler)
        saves(training, rank, 2)
        assert len(heard) == 1 - rank and all("there is no such bucket" in line for line in heard)

    two_processes(tmp_path, body, apart=True)
    assert in_s3(remote) and f"step-2/{FILES}" not in in_s3(remote)
