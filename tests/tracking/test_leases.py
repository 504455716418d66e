"""The lease under every order of its requests: processes that a scheduler leads through a registry in memory.

A process is a function of the answers that it was given: so it is called anew with those so far, and stops where it
asks for one more. What it asks for then is done, and answered, when the scheduler says so. That is how all orders of
the requests of two or three processes are tried, each state of them all once.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import NamedTuple

import pytest

from posgap.foundation.errors import PosgapError
from posgap.tracking import leases
from posgap.tracking.leases import CHOOSING, FLAG, Lease

SECONDS = 100.0
TICK = 1.1 * SECONDS  # who gave no sign in that time is dead
Answer = tuple[float, tuple[tuple[str, str], ...]]  # the time, and the tags


class Paused(BaseException):
    """A process has asked for what nobody has answered yet."""


class Broken(Exception):
    """The work under the lease went wrong."""


@dataclass
class Asked:
    """MLflow's client and the clock of a process, which was given these answers so far."""

    answers: list[Answer]
    request: tuple[str, ...] = ()  # the first without an answer
    paused: Paused | None = None
    clock: float = 0.0
    lease: Lease | None = None

    def ask(self, *request: str) -> SimpleNamespace:
        if not self.answers or self.request:
            paused = Paused()
            self.request, self.paused = self.request or request, self.paused or paused
            raise paused
        self.clock, tags = self.answers.pop(0)
        if self.lease and self.lease._flag:
            self.lease._holds_until = self.clock + SECONDS / 2  # as its thread has it, that renews the lease
        return SimpleNamespace(tags=dict(tags))

    def get_registered_model(self, name: str) -> SimpleNamespace:
        return self.ask("read")

    def set_registered_model_tag(self, name: str, flag: str, value: str) -> None:
        self.ask("set", flag, value)

    def delete_registered_model_tag(self, name: str, flag: str) -> None:
        self.ask("remove", flag)


@dataclass(eq=False)
class Stage:
    """How far a process is after its answers: what it asks for next, whether it holds the lease, and how it ended."""

    request: tuple[str, ...]
    inside: bool
    alone: bool  # it asks for its own flags, which is all the same to the others
    flag: str
    leases: int  # that it has asked for: a second one where it lost the first
    error: BaseException | None
    answers: tuple[Answer, ...]
    after: dict[Answer, "Stage"] = field(default_factory=dict)


class Process:
    """Takes the lease once, and works under it; `ends` says that its name comes first or last among those alike."""

    def __init__(self, monkeypatch, ends: str, work: Callable[[Lease], object] = Lease.read_model):
        self._patch, self._ends, self._work = monkeypatch, ends, work
        self._stages: dict[object, Stage] = {}  # by all that decides what comes after
        self.start = self._led(())

    def next(self, stage: Stage, answer: Answer) -> Stage:
        if answer not in stage.after:
            stage.after[answer] = self._led((*stage.answers, answer))
        return stage.after[answer]

    def _led(self, answers: tuple[Answer, ...]) -> Stage:
        asked, made, inside, error = Asked(list(answers)), [], [False], None

        def work(lease: Lease) -> None:
            inside[0] = True
            try:
                self._work(lease)
            finally:
                inside[0] = bool(asked.request)

        def lease(*arguments, **options) -> Lease:
            made.append(Lease(*arguments, **options))
            made[-1]._own = f".{len(made)}-{self._ends}"
            made[-1]._beating = SimpleNamespace(start=lambda: None, join=lambda *_: None, is_alive=lambda: False)
            asked.lease = made[-1]
            return made[-1]

        with self._patch.context() as patch:
            patch.setattr(leases, "call_mlflow", lambda call, *_: call(asked))
            patch.setattr(leases, "now", lambda: asked.clock)
            patch.setattr(leases, "address", lambda: "sqlite")
            patch.setattr(leases, "Lease", lease)
            patch.setattr(leases, "time", SimpleNamespace(sleep=lambda _: asked.ask("wait"), time=lambda: 0.0))
            try:
                leases.in_turn("tiny", work)
            except (Paused, Broken, PosgapError) as problem:
                error = problem
        position = tuple(_position(asked.paused))
        alone = asked.request == ("read",) and not inside[0] and "_flags" not in {name for name, _ in position}
        key = (asked.request, asked.clock, inside[0], len(made), *_memory(made[-1]), *position)
        stage = Stage(asked.request, inside[0], alone, made[-1]._flag, len(made), error, answers)
        return self._stages.setdefault(key, stage)


def _memory(lease: Lease) -> tuple[object, ...]:
    """What a lease remembers; when it saw a flag first matters to who waits for the dead alone."""
    return lease._flag, lease._holds_until, tuple(lease._raised), tuple(lease._others.items())


def _position(error: BaseException | None) -> Iterator[object]:
    """Where the lease's code has stopped, and its variables."""
    at = error.__traceback__ if error else None
    while at:
        if at.tb_frame.f_code.co_filename == leases.__file__:
            yield at.tb_frame.f_code.co_name, at.tb_lasti
            for name, value in at.tb_frame.f_locals.items():
                if name == "numbers":
                    yield name, max(value, default=0)  # whose successor is in the flag
                elif isinstance(value, str | list | set | dict):
                    yield name, str(value if isinstance(value, dict) else sorted(value))
        at = at.tb_next


class World(NamedTuple):
    """The tags, by number of all sets of them that there were, the time, how far each process is, by number of all
    stages that there were, who waits until a tag is another, and who was killed."""

    tags: int
    clock: float
    stages: tuple[int, ...]
    waiting: frozenset[int] = frozenset()
    dead: int = -1


class Scheduler:
    """Every order of the requests of some processes; with `kills`, each is also killed before any of its requests."""

    def __init__(self, processes: list[Process], kills: Callable[[Stage], bool] | None = None):
        self.processes, self.kills = processes, kills
        self.tags, self.stages = Numbered(), Numbered()
        self.recovered = 0
        self._done: dict[tuple[int, ...], tuple[int, int, bool]] = {}

    def run(self) -> int:
        """Holds in every state that one process at most holds the lease, and at every end that all had it that live.
        Returns how many states there are."""
        first = World(self.tags.number(()), 0.0, tuple(self.stages.number(process.start) for process in self.processes))
        known, left = {first}, [first]
        while left:
            world = left.pop()
            living = [self.stages[number] for i, number in enumerate(world.stages) if i != world.dead]
            assert sum(stage.inside for stage in living) <= 1, "two hold the lease"
            assert max(stage.leases for stage in living) == 1, "a lease was lost that was renewed in time"
            assert world.clock < 10 * TICK, "the dead are waited for for ever"
            if not (following := set(self._following(world))):
                assert not any(stage.request for stage in living), "all wait for ever"
                assert world.dead >= 0 or not self.tags[world.tags], "a flag was left behind"
                self.recovered += world.dead >= 0 and self.stages[world.stages[world.dead]].inside
            following -= known
            known |= following
            left += following
        return len(known)

    def _following(self, world: World) -> Iterator[World]:
        left = [i for i, n in enumerate(world.stages) if i != world.dead and self.stages[n].request]
        can = [i for i in left if i not in world.waiting]
        if alone := [i for i in can if self.stages[world.stages[i]].alone]:
            yield self._after(world, alone[0])
            return
        for i in can:
            yield self._after(world, i)
        if self.kills and world.dead < 0:
            for i in (i for i in left if self.kills(self.stages[world.stages[i]])):
                yield world._replace(dead=i)
        if left and not can and world.dead >= 0:  # all wait for the dead, and renew their flags
            renewed = {self.stages[world.stages[i]].flag for i in left}
            tags = tuple((flag, value + "'" * (flag in renewed)) for flag, value in self.tags[world.tags])
            yield World(self.tags.number(tags), world.clock + TICK, world.stages, frozenset(), world.dead)

    def _after(self, world: World, i: int) -> World:
        """The world in which the request of a process was done."""
        key = (world.tags, world.clock, i, world.stages[i], world.dead >= 0)
        if key not in self._done:
            self._done[key] = self._request(*key)
        tags, stage, waits = self._done[key]
        waiting = world.waiting if tags == world.tags else frozenset()
        stages = (*world.stages[:i], stage, *world.stages[i + 1 :])
        return World(tags, world.clock, stages, waiting | {i} if waits else waiting, world.dead)

    def _request(self, tags_number: int, clock: float, i: int, number: int, timed: bool) -> tuple[int, int, bool]:
        """What comes of a process's request: the tags, where it is then, and whether it waits."""
        stage, tags = self.stages[number], dict(self.tags[tags_number])
        kind, *rest = stage.request
        if kind == "set":
            tags[rest[0]] = rest[1]
        elif kind == "remove":
            tags.pop(rest[0], None)
        there = tuple(sorted(tags.items()))
        after = self.processes[i].next(stage, (clock, there))
        if waits := after.request == ("wait",):
            # Before any time passes, a look after which it went on waiting may as well not have been.
            after = self.processes[i].next(after, (clock, there)) if timed else stage
        return self.tags.number(there), self.stages.number(after), waits


class Numbered(list):
    """What there was, each once, by number."""

    def __init__(self):
        super().__init__()
        self._numbers: dict[object, int] = {}

    def number(self, each: object) -> int:
        if each not in self._numbers:
            self._numbers[each] = len(self)
            self.append(each)
        return self._numbers[each]


@pytest.fixture
def alone(monkeypatch):
    monkeypatch.setenv(leases.VARIABLE, str(SECONDS))
    monkeypatch.setattr(leases, "_process", lambda: "process")
    return monkeypatch


def fails(lease: Lease) -> None:
    lease.read_model()
    raise Broken


@pytest.mark.full
@pytest.mark.parametrize("names", ["ab", pytest.param("abc", marks=pytest.mark.nightly)])
def test_in_every_order_of_requests_one_at_a_time_holds_the_lease_and_all_get_it(alone, names):
    tried = Scheduler([Process(alone, name) for name in names])
    tried.run()
    there = [sorted(map(leases._number, dict(tags))) for tags in tried.tags]
    # Among them are those in which all have the same number, and one was chosen beside those that choose.
    assert [1] * len(names) in there and [0] * len(names) + [1] in there
    assert all(stage.error is None for stage in tried.stages if not stage.request)


def test_work_that_fails_gives_the_lease_back_in_every_order(alone):
    tried = Scheduler([Process(alone, "a", fails), Process(alone, "b")])
    tried.run()
    ends = {type(stage.error) for stage in tried.stages if not stage.request}
    assert ends == {Broken, type(None)}


@pytest.mark.full
@pytest.mark.parametrize(("names", "killed"), [("ab", ""), pytest.param("abc", "-b", marks=pytest.mark.nightly)])
def test_who_is_killed_at_any_request_is_followed_by_the_others(alone, names, killed):
    """Of three, the second while it holds the lease."""
    tried = Scheduler(
        [Process(alone, name) for name in names],
        kills=lambda stage: not killed or (stage.inside and stage.flag.endswith(killed)),
    )
    tried.run()
    assert tried.recovered and all(stage.error is None for stage in tried.stages if not stage.request)


def test_who_chose_for_so_long_that_others_took_away_its_flag_asks_anew(alone):
    """Its number may be lower than that of who has not waited for it."""
    process = Process(alone, "a")
    stage = process.start
    while stage.request[:2] != ("set", f"{FLAG}00000001.1-a"):
        stage = process.next(stage, (0.0, ((stage.flag, "choosing"),)))
    there = tuple((flag, "there") for flag in (f"{FLAG}00000001.1-a", f"{FLAG}{CHOOSING}.1-a"))
    in_time, too_late = (process.next(process.next(stage, (0.0, tags)), (0.0, tags)) for tags in (there, there[:1]))
    assert in_time.request == ("read",)
    assert too_late.request == ("remove", f"{FLAG}{CHOOSING}.1-a")


def test_whose_flag_is_gone_holds_the_lease_no_more(alone):
    """Another has removed it, and may hold the lease by now, whatever this process's own clock says."""
    process = Process(alone, "a")
    stage, tags = process.start, {}
    while not stage.inside:
        kind, *rest = stage.request
        tags = tags | dict([rest]) if kind == "set" else {flag: tags[flag] for flag in tags if flag not in rest}
        stage = process.next(stage, (0.0, tuple(tags.items())))
    assert stage.request == ("read",) and set(tags) == {stage.flag}
    held, lost = (process.next(stage, (0.0, answer)) for answer in (tuple(tags.items()), ()))
    assert held.request == ("read",) and lost.request[0] == "remove" and not lost.inside
