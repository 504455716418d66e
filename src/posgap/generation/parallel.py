"""The transformers backend in several processes: one per GPU, or several that share the CPU's cores."""

import multiprocessing
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from multiprocessing.connection import Connection, wait

import torch
from transformers import PreTrainedTokenizerBase

from posgap.foundation.errors import PosgapError
from posgap.generation.batching import BATCH_TOKENS, Group, group_batches
from posgap.generation.generator import Completion, Sampling
from posgap.generation.transformers import TransformersGenerator
from posgap.mitigations.in_force import load_model


class ParallelGenerator:
    """Generates with `processes` processes that each have a copy of the model and share the examples.

    A process that has answered a batch gets the next one. The batches are the same as with a single process, and so
    are the answers. Raises `PosgapError` if a process dies, after yielding everything that was finished before.
    """

    def __init__(self, model: str, dtype: str, tokenizer: PreTrainedTokenizerBase, batch_tokens: int, processes: int):
        self.model, self.dtype, self.tokenizer = model, dtype, tokenizer
        self.batch_tokens, self.processes = batch_tokens or BATCH_TOKENS, processes

    def generate(self, groups: Iterable[Group], sampling: Sampling) -> Iterator[tuple[int, int, Completion]]:
        batches = enumerate(group_batches(groups, sampling.limit, self.batch_tokens))
        with self._workers() as idle:
            busy: dict[Connection, list[int]] = {}
            while True:
                for number, batch in islice(batches, len(idle)):
                    worker = idle.pop()
                    _send_to(worker, (number, [group for _, group in batch], sampling))
                    busy[worker] = [index for index, _ in batch]
                if not busy:
                    return
                ready = wait(busy)
                for worker in [worker for worker in busy if worker in ready]:
                    answer = _receive(worker)
                    if answer:
                        row, at, completion = answer
                        yield busy[worker][row], at, completion
                    else:
                        del busy[worker]
                        idle.append(worker)

    @contextmanager
    def _workers(self) -> Iterator[list[Connection]]:
        """Starts the processes and yields the connections to them; they end with the block, or with this process."""
        context = multiprocessing.get_context("spawn")  # a forked process cannot use CUDA
        threads = max(1, torch.get_num_threads() // self.processes)
        connections, running = [], []
        try:
            for number in range(self.processes):
                ours, theirs = context.Pipe()
                work = (theirs, _device(number), threads, self.model, self.dtype, self.tokenizer, self.batch_tokens)
                process = context.Process(target=_serve, args=work, daemon=True)
                process.start()
                theirs.close()  # only the process holds it now, so it closes when the process ends
                connections.append(ours)
                running.append(process)
            yield connections
        finally:
            for process in running:
                process.terminate()
                process.join()


def _device(number: int) -> str:
    gpus = torch.cuda.device_count()
    return f"cuda:{number % gpus}" if gpus else "cpu"


def _serve(
    connection: Connection,
    device: str,
    threads: int,
    model: str,
    dtype: str,
    tokenizer: PreTrainedTokenizerBase,
    batch_tokens: int,
) -> None:
    """The main function of a process: answers batches until the connection closes, each answer as it is there, and
    None after a batch's last. An exception is sent as the last answer."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the parent ends the others
    torch.set_num_threads(threads)
    try:
        loaded = load_model(model, dtype)
        generator = TransformersGenerator(loaded, tokenizer, batch_tokens, device=device, pack=True)
        while True:
            number, groups, sampling = connection.recv()
            for answer in generator.answer_batch(number, groups, sampling):
                connection.send(answer)
            connection.send(None)
    except EOFError:
        return
    except Exception as error:
        connection.send(error)


def _send_to(worker: Connection, batch: tuple) -> None:
    # The worker may have died or reported an error; `_receive` finds out which.
    with suppress(OSError):
        worker.send(batch)


def _receive(worker: Connection) -> tuple[int, int, Completion] | None:
    try:
        answer = worker.recv()
    except (EOFError, OSError):
        raise PosgapError(
            "a generating process was killed, perhaps for memory; run the same command again to go on, with a lower "
            "`batch_tokens` or a lower POSGAP_PROCESSES"
        ) from None
    if isinstance(answer, Exception):
        raise answer
    return answer
