"""The processes that a launcher (torchrun and its kind) has started for one command, before they meet for training."""

import functools
import itertools
import json
import logging
import os
import re
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn, TypeVar

from posgap.foundation.errors import OfAll, PosgapError, ProcessFailure, first_line

T = TypeVar("T")
_calls = itertools.count()
LEAVE_SECONDS = 5.0  # for processes that end together
# Messages of a process that lost its peer, in gloo's, NCCL's and the store's words.
LOST_PEER = re.compile(
    r"connection (was )?(closed|reset|refused)|broken pipe|remote process exited|socket timeout|DistBackendError"
    r"|watchdog|TCPStore|(send|recv)(Bytes|Value|VectorValue) failed|SIGTERM|first process cannot be reached",
    re.IGNORECASE,
)


def launch_rank_and_size() -> tuple[int, int]:
    """This process's rank and the number of processes, by the launcher's variables."""
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def is_main_process() -> bool:
    """Whether this process is the one that writes."""
    return launch_rank_and_size()[0] == 0


def first_of_its_node() -> bool:
    """Whether this is the first process of its machine, which does the work needed once per machine."""
    return os.environ.get("LOCAL_RANK", "0") == "0"


def exit_process(code: int) -> NoReturn:
    """Ends this process with an exit code; raises `SystemExit`, except in one process of several.

    Those leave without shutting the interpreter down: during shutdown, gloo's threads now and then abort the process.
    The launcher then stops the others, and one of these may still be writing the model.
    """
    if launch_rank_and_size()[1] == 1:
        sys.exit(code)
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    os._exit(code)


def gather_from_all(work: Callable[[], T]) -> list[T]:
    """Returns what `work` returns in each process of this launch, as JSON values, in the order of their ranks.

    Every process has to call this as often as the others. If `work` raises `PosgapError` in one of them, all of them
    raise `OfAll`, and the command line shows it once.
    """
    rank, world = launch_rank_and_size()
    if world == 1:
        return [work()]
    board = _board()
    call = next(_calls)
    try:
        answer: dict[str, Any] = {"value": work()}
    except PosgapError as error:
        answer = {"error": str(error), "code": error.code, "may_pass": error.may_pass}
    try:
        board.set(f"{call}/{rank}", json.dumps(answer))
        _wait_until(lambda: board.check([f"{call}/{each}" for each in range(world)]))
        answers = [json.loads(board.get(f"{call}/{each}")) for each in range(world)]
        board.add(f"{call}/read", 1)
        if rank == 0:  # which may hold the board, and end now
            _wait_until(lambda: board.add(f"{call}/read", 0) == world)
    except RuntimeError as error:
        reason = first_line(error)
        raise ProcessFailure(f"the launch's first process cannot be reached ({reason}); see its error") from None
    for each in answers:
        if "error" in each:
            failure = OfAll(each["error"], each["code"])
            failure.may_pass = each["may_pass"]
            raise failure
    return [each["value"] for each in answers]


def leave_together() -> None:
    """Waits until every process that has raised `OfAll` has come here, the first one when it has shown the line.

    A launcher stops the others as soon as one has failed, and with them the line, if that one were not the first.
    """
    deadline = time.monotonic() + LEAVE_SECONDS
    with suppress(RuntimeError):
        _board().add("leaving", 1)
        while _board().add("leaving", 0) < launch_rank_and_size()[1] and time.monotonic() < deadline:
            time.sleep(0.01)


@functools.cache  # it lasts as long as this process
def _board() -> Any:
    """A store of keys and values that all processes read and write: the one through which torch has them meet later."""
    from torch.distributed import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    store, _, _ = next(rendezvous("env://"))
    return PrefixStore(f"posgap/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)


def _wait_until(done: Callable[[], bool]) -> None:
    """Waits without a limit, since hashing may take long, and in Python, which handles signals."""
    while not done():
        time.sleep(0.05)
