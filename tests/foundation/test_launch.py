"""The processes of one launch agree on what they read before they work, and each machine reads it once."""

import atexit
import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from ports import free_port
from torch.multiprocessing import ProcessExitedException, start_processes

from posgap.cli import main as cli
from posgap.foundation.errors import OfAll, PosgapError, ProcessFailure
from posgap.foundation.fields import InputPath
from posgap.foundation.launch import exit_process, gather_from_all, is_main_process
from posgap.options.base import StageConfig
from posgap.verbs.frame import stage


def launch(body, local_ranks: list[int]) -> None:
    """Runs `body(rank)` in a process for each of these, as a launcher starts them."""
    port = str(free_port())

    def run(rank):
        os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(len(local_ranks)), "LOCAL_RANK": str(local_ranks[rank])}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        body(rank)

    start_processes(run, nprocs=len(local_ranks), start_method="fork")


def test_every_process_learns_what_each_has():
    def body(rank):
        assert gather_from_all(lambda: {"rank": rank}) == [{"rank": 0}, {"rank": 1}, {"rank": 2}]
        assert gather_from_all(lambda: "" if rank else "first") == ["first", "", ""]

    launch(body, [0, 1, 2])


@pytest.mark.parametrize("failing", [0, 1])
def test_what_one_process_is_refused_all_are(failing):
    def work(rank):
        if rank == failing:
            raise PosgapError("model: no such folder")
        return rank

    def body(rank):
        with pytest.raises(OfAll, match="^model: no such folder$"):
            gather_from_all(lambda: work(rank))

    launch(body, [0, 1])


def test_processes_that_are_refused_end_when_the_first_has_shown_why(tmp_path):
    def refuse(config):
        gather_from_all(lambda: (_ for _ in ()).throw(PosgapError("model: no such folder")))

    def body(rank):
        line = tmp_path / "line"
        with pytest.MonkeyPatch.context() as patched, open(tmp_path / f"shown-{rank}", "w") as shown:
            patched.setattr(sys, "stderr", shown)
            patched.setattr(cli, "build", lambda: SimpleNamespace(main=lambda *a, **k: refuse(None), params=[]))
            patched.setattr(cli, "exit_process", lambda code: sys.exit(code))
            if rank == 0:
                show = cli._fail
                patched.setattr(cli, "_fail", lambda *said: (time.sleep(0.5), show(*said), line.touch())[1])
            with pytest.raises(SystemExit) as ended:
                cli.main([])
        assert ended.value.code == 2 and line.exists()
        assert "model: no such folder" in (tmp_path / "shown-0").read_text() or rank
        assert (tmp_path / "shown-1").read_text() == "" or not rank

    launch(body, [0, 1])


def test_a_launch_whose_first_process_is_gone_is_told_so():
    def body(rank):
        gather_from_all(lambda: rank)
        if rank:
            with pytest.raises(ProcessFailure):
                gather_from_all(lambda: rank)

    launch(body, [0, 1])


class ReadConfig(StageConfig):
    source: InputPath


@stage
def read(config, out, run):
    Path(f"{os.environ['RANK']}.sha256").write_text(config.digest("source"))
    if is_main_process():
        (out / "read.txt").write_text("read")


def read_in(folders: list[Path], local_ranks: list[int]) -> list[list[str]]:
    """Runs the stage `read` in a process for each folder, its machine; returns what each opened of its input, and
    the errors."""

    def body(rank):
        os.chdir(folders[rank])

        def watch(event, arguments):
            if event == "open" and str(arguments[0]).endswith("model.bin"):
                with open(f"{rank}.opened", "a") as log:
                    log.write("model.bin\n")

        sys.addaudithook(watch)
        try:
            read(ReadConfig(out="out", source="model.bin"))
        except PosgapError as error:
            Path(f"{rank}.error").write_text(str(error))

    launch(body, local_ranks)
    files = [[folder / f"{rank}.{kind}" for kind in ("opened", "error")] for rank, folder in enumerate(folders)]
    return [[file.read_text() if file.exists() else "" for file in both] for both in files]


@pytest.fixture
def machines(tmp_path) -> list[Path]:
    """Two machines with a model each."""
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
        (folder / "model.bin").write_text("weights")
    return folders


def test_the_first_process_of_each_machine_hashes_for_the_others(machines):
    one, other = machines
    opened = read_in([one, one, other, other], [0, 1, 0, 1])
    assert opened == [["model.bin\n", ""], ["", ""], ["model.bin\n", ""], ["", ""]]
    assert len({(folder / f"{rank}.sha256").read_text() for rank, folder in enumerate([one, one, other, other])}) == 1
    # Complete on the first machine: no process goes on to the work, though the other one does not see the output.
    for file in (*one.glob("*.sha256"), *other.glob("*.sha256")):
        file.unlink()
    read_in([one, one, other, other], [0, 1, 0, 1])
    assert not [*one.glob("*.sha256"), *other.glob("*.sha256")]


def test_machines_with_other_models_are_refused(machines):
    (machines[1] / "model.bin").write_text("weighty")
    refusals = [error for _, error in read_in(machines, [0, 0])]
    assert refusals == ["source: model.bin differs between machines; copy it to all machines again"] * 2
    assert not list(machines[0].glob("*.sha256"))


def test_one_process_of_several_ends_without_what_could_abort_it(tmp_path):
    """As threads of gloo's do when the interpreter goes; what was printed is there, and so is the exit code."""

    def body(rank):
        with open(tmp_path / str(rank), "w", encoding="utf-8") as sys.stdout:
            print("done")
            atexit.register(os.abort)
            exit_process(7 * rank)

    with pytest.raises(ProcessExitedException) as ended:
        launch(body, [0, 1])
    assert (ended.value.error_index, ended.value.exit_code) == (1, 7)
    assert [(tmp_path / str(rank)).read_text() for rank in (0, 1)] == ["done\n"] * 2


def test_a_process_of_its_own_ends_as_python_does():
    with pytest.raises(SystemExit) as ended:
        exit_process(3)
    assert ended.value.code == 3
