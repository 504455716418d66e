"""The log of a pipeline run on this machine, to which steps that run at once write."""

import io
import threading
import time

from posgap.pipelines.local import _LogStream


class Disk(io.RawIOBase):
    """A file on a disk that takes its time, in which other threads go on."""

    def __init__(self) -> None:
        self.content = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, data) -> int:
        time.sleep(0.0001)
        self.content += data
        return len(data)


def test_steps_that_write_at_once_lose_no_line_and_leave_nothing_else_in_the_log():
    disk = Disk()
    log = io.TextIOWrapper(io.BufferedWriter(disk), encoding="utf-8")
    digest = _LogStream(log, lambda line: None)
    lines = [[f"step {step}: {'x' * (13 * n % 3000)}{n}" for n in range(200)] for step in range(4)]

    def write(own: list[str]) -> None:
        for line in own:
            digest.write(f"{line}\n")

    threads = [threading.Thread(target=write, args=(own,)) for own in lines]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    digest.flush()
    written = disk.content.decode().splitlines()
    assert [[line for line in written if line.startswith(f"step {step}:")] for step in range(4)] == lines
    assert len(written) == sum(map(len, lines))
