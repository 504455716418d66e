"""The one MLflow run of a pipeline run, whatever the order in which its stages look for it."""

import random
import threading
from types import SimpleNamespace

import pytest

from posgap.tracking import parents


class Killed(Exception):
    pass


class Scheduler:
    """Lets one thread at a time do its next step, in an order drawn from a seed; one may be killed before it."""

    def __init__(self, seed: int, killed_at: int | None):
        self.draw, self.killed_at = random.Random(seed), killed_at
        self.turns: dict[int, threading.Semaphore] = {}
        self.arrived = threading.Semaphore(0)
        self.waiting: set[int] = set()
        self.kills = False

    def step(self) -> None:
        """Called by a thread before its next step."""
        self.waiting.add(threading.get_ident())
        self.arrived.release()
        self.turns[threading.get_ident()].acquire()
        if self.kills:
            self.kills = False
            raise Killed

    def run(self, works) -> list[str]:
        results = dict[int, str]()

        def begin(number, work):
            self.turns[threading.get_ident()] = threading.Semaphore(0)
            try:
                self.step()
                results[number] = work()
            except Killed:
                pass
            except Exception as error:
                results[number] = repr(error)
            finally:
                self.arrived.release()

        threads = [threading.Thread(target=begin, args=each, daemon=True) for each in enumerate(works)]
        for thread in threads:
            thread.start()
        for _ in threads:
            self.arrived.acquire()
        steps = 0
        while left := sorted(self.waiting, key=[each.ident for each in threads].index):
            chosen = self.draw.choice(left)
            steps += 1
            self.kills = steps == self.killed_at
            self.waiting.discard(chosen)
            self.turns[chosen].release()
            self.arrived.acquire()
        return [results[number] for number in sorted(results)]


class Client:
    """The part of `MlflowClient` that is used: each call sees and changes all runs at once, as a database does."""

    def __init__(self, scheduler: Scheduler):
        self.scheduler, self.runs, self.made = scheduler, dict[str, SimpleNamespace](), 0

    def search_runs(self, experiments, condition):
        self.scheduler.step()
        return [SimpleNamespace(info=run.info, data=SimpleNamespace(tags={**run.tags})) for run in self.runs.values()]

    def create_run(self, experiment, start_time, tags, name):
        self.scheduler.step()
        self.made += 1
        info = SimpleNamespace(run_id=f"run-{self.made}", start_time=start_time)
        self.runs[info.run_id] = SimpleNamespace(info=info, tags={**tags})
        return SimpleNamespace(info=info)

    def set_tag(self, run_id, key, value):
        self.scheduler.step()
        self.runs[run_id].tags[key] = value

    def delete_run(self, run_id):
        self.scheduler.step()
        assert parents.TAKEN_TAG not in self.runs.pop(run_id).tags


@pytest.mark.parametrize("killed", [False, True])
def test_in_whatever_order_stages_look_they_take_one_run_and_leave_no_other(killed, monkeypatch):
    at_once = 0
    for seed in range(150):
        draw = random.Random(seed)
        scheduler = Scheduler(seed, draw.randrange(2, 25) if killed else None)
        client, clocks = Client(scheduler), {}

        def clock(clocks=clocks, draw=draw):
            return clocks.setdefault(threading.get_ident(), draw.random())

        own_time = SimpleNamespace(time=clock, sleep=lambda seconds, scheduler=scheduler: scheduler.step())
        monkeypatch.setattr(parents, "time", own_time)
        taken = scheduler.run([lambda client=client: parents.parent_of(client, "0", "run", {})] * draw.randrange(2, 5))
        assert len({*taken}) == 1 and taken[0] in client.runs, f"seed {seed}: {taken} of {[*client.runs]}"
        assert killed or [*client.runs] == taken[:1], f"seed {seed}: {[*client.runs]}"
        at_once += client.made > 1
    assert at_once > 50  # else the orders say nothing
