"""The lease of a registered name: a process must hold it to move aliases, and only one can at a time.

MLflow's interface has no lock and no compare-and-swap. Every backend of it has tags, though: a process can use tags
that no other one writes, and a read returns the last value written. They are enough for a lock, Lamport's bakery. Each
process has its own tags on the registered model, its flags. The first flag says that it is choosing a number. The
second holds the number, which is higher than all that it sees. The process waits for those that were choosing when it
had its own number, and for lower numbers. No process changes or removes the flag of another, unless that one is dead.
Then it removes exactly this flag; removing it twice does no harm.

A holder writes its flag again and again. A waiting process takes the holder for dead when the flag has not changed for
as many seconds as it says. It measures them by its own clock, so no two clocks are compared. A holder that could not
write its flag for half of that time writes nothing more. The other half is for requests that are still in flight.
"""

import json
import logging
import os
import random
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from posgap.foundation.environment import read_number
from posgap.foundation.errors import NoServer, ProcessFailure
from posgap.foundation.heavy_types import MlflowClient, RegisteredModel
from posgap.foundation.retries import RetryPolicy
from posgap.tracking.server import ONCE, RequestRefused, TrackingError, address, call_mlflow

T = TypeVar("T")
log = logging.getLogger(__name__)
FLAG = "posgap.lease."  # how the tags of a registered model begin that are flags
CHOOSING = "choosing"  # in a flag, in the place of the number
VARIABLE = "POSGAP_LEASE_SECONDS"
SECONDS = 120.0  # without a change of its flag, after which a holder is dead
MIN_SECONDS, MAX_SECONDS = 1.0, 3600.0  # that a flag may say
MIN_PAUSE = 0.5  # seconds between two looks at the others
WAIT = 1800.0  # seconds that one process waits for the others
WRITING = RetryPolicy(seconds=60, longest_wait=5)  # of a change under the lease
LOST_AT_MOST = 3  # times, for one piece of work


class LeaseLost(NoServer):
    """Another process has the lease by now, or may have it: MLflow did not answer in time."""


def now() -> float:
    """Returns seconds on a clock that cannot be set and that keeps running while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Lease:
    """The exclusive right of this process to move a registered model's aliases.

    `stale` has the aliases that this process wrote under an earlier lease, which it lost.
    """

    def __init__(self, name: str, stale: Mapping[str, str] | None = None, quiet_at: float = 0.0):
        self.name = name
        self.seconds = read_number(VARIABLE, SECONDS, MIN_SECONDS, MAX_SECONDS)
        self.stale = dict(stale or {})
        self.aliases: dict[str, str] = {}  # as this process last wrote them
        # A database on this machine does nothing after it has failed to answer. A server may still carry out a request
        # long after this process has stopped waiting for the answer.
        self.in_transit = 0.0 if address().startswith("sqlite") else self.seconds / 2
        self.quiet_at = quiet_at  # from when on no unanswered request can still take effect
        self._own = f".{int(1000 * time.time())}-{uuid.uuid4().hex[:8]}"  # end of its flags
        self._raised: list[str] = []
        self._flag, self._beats, self._holds_until = "", 0, 0.0
        self._others: dict[str, tuple[str, float]] = {}
        self._awaited: set[str] = set()
        self._writing = threading.Lock()
        self._over = threading.Event()
        self._beating = threading.Thread(target=self._beat, name="lease", daemon=True)

    def read_model(self) -> RegisteredModel:
        """Reads the registered model's current state; raises `LeaseLost` if this process no longer has the lease."""
        model = self._fetch_model()
        self._require_time()
        if self._flag not in model.tags:
            raise LeaseLost(f"{self.name}: another process has taken over; run this again")
        return model

    def send_change(self, call: Callable[[MlflowClient], T]) -> T:
        """Returns what `call` returns. It changes something and may be called several times.

        Raises `LeaseLost` if another process may hold the lease by now."""
        return self._send_request(call, WRITING, max(1.0, min(30.0, self.seconds / 4)), self._require_time)

    def set_alias(self, alias: str, version: str) -> None:
        """Moves an alias to a version, or removes it if the version is empty."""
        self.aliases[alias] = version
        if version:
            self.send_change(lambda client: client.set_registered_model_alias(self.name, alias, version))
        else:
            self.send_change(lambda client: client.delete_registered_model_alias(self.name, alias))

    def await_inflight(self) -> None:
        """Waits until no unanswered request can still take effect."""
        seconds = self.quiet_at - now()
        if seconds > 0:
            log.info("%s: MLflow did not answer a request and may still execute it: waiting %.0f s", self.name, seconds)
            time.sleep(seconds)

    def acquire(self) -> None:
        """Returns when this process has the lease; `ProcessFailure` if that takes too long."""
        until = now() + WAIT
        choosing = f"{FLAG}{CHOOSING}{self._own}"
        self._raise(choosing)
        self._beating.start()
        numbers = [_number(flag) for flag in self._flags()]
        self._raise(f"{FLAG}{1 + max(numbers, default=0):08}{self._own}")
        # The others stop waiting for a process that chooses for too long, so its number may be too low.
        if choosing not in self.read_model().tags:
            raise LeaseLost(f"{self.name}: MLflow took too long to queue this command; run this again")
        chosen_with = {flag for flag in self._flags() if not _number(flag)}
        self._remove_flag(choosing)
        while [flag for flag in self._flags() if flag in chosen_with or self._is_before(flag)]:
            self._pause(until)
        self.read_model()

    def release(self) -> None:
        """Gives the lease back, after every request made under it has been answered or can no longer take effect."""
        try:
            self.await_inflight()
            self._over.set()
            self._beating.join()
            self.await_inflight()
            for flag in [flag for flag in self._fetch_model().tags if self._is_own(flag)]:
                self._remove_flag(flag)
        except TrackingError as error:
            self._over.set()
            log.warning("%s: its lease expires in %.0f s: %s", self.name, self.seconds, error)

    def abandon(self) -> None:
        """Gives the lease back at once after an error; leaves it to expire if a request may still take effect."""
        self._over.set()
        if self._beating.is_alive():
            self._beating.join(1.0)
        if self.quiet_at > now() or self._beating.is_alive():
            log.warning("%s: its lease is left to expire, in %.0f s", self.name, self.seconds)
            return
        try:
            for flag in self._raised:
                call_mlflow(partial(_take_down, name=self.name, flag=flag), ONCE)
        except TrackingError as error:
            log.warning("%s: its lease expires in %.0f s: %s", self.name, self.seconds, error)

    def _fetch_model(self) -> RegisteredModel:
        return call_mlflow(lambda client: client.get_registered_model(self.name))

    def _require_time(self) -> None:
        if now() > self._holds_until:
            raise LeaseLost(
                f"{self.name}: MLflow did not answer for so long that the lease may be lost; run this again"
            )

    def _send_request(
        self,
        call: Callable[[MlflowClient], T],
        retry_policy: RetryPolicy,
        seconds: float,
        check: Callable[[], None] = lambda: None,
    ) -> T:
        """Asks, and notes until when an unanswered request may still take effect."""
        sent: list[float] = []

        def attempt(client: MlflowClient) -> T:
            check()
            sent.append(now())
            return call(client)

        answered = False
        try:
            answer = call_mlflow(attempt, retry_policy, seconds)
            answered = True
            return answer
        except RequestRefused:
            answered = True
            raise
        finally:
            unanswered = sent[:-1] if answered else sent
            self.quiet_at = max([self.quiet_at, *(at + self.in_transit for at in unanswered)])

    def _is_before(self, flag: str) -> bool:
        """Whether a flag has a lower number than this process's, or the same and comes first by its name."""
        return _number(flag) > 0 and (_number(flag), flag) < (_number(self._flag), self._flag)

    def _is_own(self, flag: str) -> bool:
        return flag.startswith(FLAG) and flag.endswith(self._own)

    def _raise(self, flag: str) -> None:
        """Writes a flag, which the heartbeat renews from now on."""
        if self._flag:
            self._require_time()
        with self._writing:
            self._flag = flag
            self._raised.append(flag)
            self._show(WRITING, self.seconds / 4)

    def _remove_flag(self, flag: str) -> None:
        self._send_request(partial(_take_down, name=self.name, flag=flag), WRITING, self.seconds / 4)

    def _show(self, retry_policy: RetryPolicy, seconds: float) -> None:
        """Writes the flag, with another value than before."""
        self._beats += 1
        value = json.dumps({"by": _process(), "seconds": self.seconds, "beat": self._beats})
        sent = now()
        flag = self._flag
        self._send_request(
            lambda client: client.set_registered_model_tag(self.name, flag, value), retry_policy, seconds
        )
        self._holds_until = sent + self.seconds / 2

    def _beat(self) -> None:
        while not self._over.wait(self.seconds / 8):
            with self._writing:
                if not self._flag:
                    continue
                # A process that slept for long must not restore its flag: another may have removed it.
                if now() > self._holds_until:
                    return
                try:
                    self._show(ONCE, self.seconds / 8)
                except TrackingError as error:
                    log.debug("%s: its lease was not renewed: %s", self.name, error)

    def _flags(self) -> list[str]:
        """The flags of other processes that are not known to be dead; flags of dead processes are removed."""
        tags = self._fetch_model().tags
        flags = {flag: value for flag, value in tags.items() if flag.startswith(FLAG) and not self._is_own(flag)}
        before = self._others
        self._others = {}
        for flag, value in flags.items():
            value_before, since = before.get(flag, ("", 0.0))
            if value_before == value and now() - since > _holder(value)[1]:
                log.info("%s: the lease of %s has expired", self.name, _holder(value)[0])
                self._remove_flag(flag)
            else:
                self._others[flag] = (value, since if value_before == value else now())
                holder = _holder(value)[0]
                if holder not in self._awaited:
                    self._awaited.add(holder)
                    log.info("%s: waiting for %s", self.name, holder)
        return list(self._others)

    def _pause(self, until: float) -> None:
        if now() > until:
            holder = next((_holder(value)[0] for value, _ in self._others.values()), "others")
            raise ProcessFailure(f"{self.name}: {holder} has held its lease for {WAIT:.0f} s; run this again later")
        if self._flag and now() > self._holds_until:
            raise LeaseLost(f"{self.name}: MLflow did not answer while posgap waited for the lease; run this again")
        time.sleep(max(MIN_PAUSE, self.seconds / 60) * random.uniform(0.5, 1.0))


def _take_down(client: MlflowClient, name: str, flag: str) -> None:
    client.delete_registered_model_tag(name, flag)


@contextmanager
def _hold(lease: Lease) -> Iterator[Lease]:
    try:
        lease.acquire()
        yield lease
    except BaseException:
        lease.abandon()
        raise
    lease.release()


def in_turn(name: str, work: Callable[[Lease], T]) -> T:
    """Calls `work` while this process holds the lease of an existing registered model, and returns what it returns.

    If the lease was lost meanwhile it is called again, so it must read everything anew.
    """
    lease = Lease(name)
    for lost in range(LOST_AT_MOST + 1):
        try:
            with _hold(lease):
                return work(lease)
        except LeaseLost as error:
            if lost == LOST_AT_MOST:
                raise
            log.warning("%s", error)
            lease = Lease(name, stale=lease.stale | lease.aliases, quiet_at=lease.quiet_at)
            lease.await_inflight()
    raise AssertionError  # the loop has returned or raised


def _holder(value: str) -> tuple[str, float]:
    """The process that wrote a flag, and the seconds without a change after which the flag has expired."""
    try:
        holder: Any = json.loads(value)
        return str(holder["by"]), min(MAX_SECONDS, max(MIN_SECONDS, float(holder["seconds"])))
    except (ValueError, LookupError, TypeError):
        return "somebody", SECONDS


def _number(flag: str) -> int:
    """The number in a flag; 0 if its process is choosing one, or the tag is no flag of posgap's."""
    number = flag.removeprefix(FLAG).partition(".")[0]
    return int(number) if number.isdecimal() else 0


def _process() -> str:
    return f"process {os.getpid()} on {socket.gethostname()}"
