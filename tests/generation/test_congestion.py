"""The window finds how many requests a server is best sent at once: simulated servers, in a time of their own."""

import heapq
import random

import pytest

from posgap.generation.congestion import Window


class Fixed(Window):
    def __init__(self, size, clock):
        super().__init__(size, clock=clock)
        self.size = float(size)

    def note_answer(self, sent):
        pass


def serve(n, slots, seconds, largest=256, fixed=0, longest_wait=60.0, most=10**9):
    """Seconds that a server takes for n requests, the window, and the mean wait; it turns away more than `most`."""
    now = 0.0
    window = Fixed(fixed, lambda: now) if fixed else Window(largest, longest_wait, lambda: now)
    free, events, sent, done, under_way, waits = [0.0] * slots, [], 0, 0, 0, []
    while done < n:
        while under_way < window.room and sent < n:
            if under_way >= most:
                window.note_refusal(now)
                break
            ends = max(now, heapq.heappop(free)) + seconds()
            heapq.heappush(free, ends)
            heapq.heappush(events, (ends, sent, now))
            sent, under_way = sent + 1, under_way + 1
        now, _, began = heapq.heappop(events)
        under_way, done = under_way - 1, done + 1
        waits.append(now - began)
        window.note_answer(began)
    return now, window, sum(waits) / n


def fixed_number(seconds):
    return lambda: seconds


@pytest.mark.parametrize("slots", [1, 4, 8, 48, 64])
@pytest.mark.parametrize("seconds", [0.05, 0.5])
def test_found_number_is_nearly_as_quick_as_the_best_fixed_one(slots, seconds):
    best = min(serve(2000, slots, fixed_number(seconds), fixed=2**power)[0] for power in range(9))
    took, window, _ = serve(2000, slots, fixed_number(seconds))
    assert took <= 1.1 * best and slots <= window.size <= 4 * slots


@pytest.mark.parametrize("slots", [1, 8, 64])
def test_answers_of_different_lengths_mislead_little(slots):
    ratios = []
    for seed in range(5):
        draw = random.Random(seed)
        best = serve(3000, slots, lambda draw=draw: draw.expovariate(2), fixed=2 * slots)[0]
        ratios.append(serve(3000, slots, lambda draw=draw: draw.expovariate(2))[0] / best)
    assert sorted(ratios)[2] <= 1.25


def test_server_that_answers_one_after_the_other_is_not_made_to_wait():
    _, window, wait = serve(400, 1, fixed_number(0.5))
    assert window.size <= 2 and wait < 8
    # Even the first requests may have to wait for one another no longer than that.
    _, window, wait = serve(40, 1, fixed_number(20.0))
    assert wait <= 60 and window.size <= 3


def test_requests_that_are_turned_away_bound_the_window():
    took, window, _ = serve(2000, 20, fixed_number(0.5), most=20)
    assert window.refusals < 100 and 10 <= window.size <= 21 and took < 1.3 * 50


def test_timeouts_end_the_rise():
    window = Window(64, longest_wait=1.0, clock=lambda: now)
    now = 0.0
    window.note_answer(0.0)
    assert window.size == 16
    now = 3.0
    window.note_refusal(2.0)
    assert window.size == 8
    window.note_refusal(2.5)  # was sent before the last halving
    assert window.size == 8
    now = 4.5
    window.note_answer(3.0)  # slow answers make no room
    assert window.size == 8
    window.note_answer(4.0)
    window.note_refusal(4.0)
    assert window.size == 4.5


@pytest.mark.parametrize(
    ("headers", "room"),
    [
        ({"x-ratelimit-remaining-requests": "3"}, 3),
        ({"x-ratelimit-remaining-requests": "0"}, 1),
        ({"anthropic-ratelimit-requests-remaining": "5", "ratelimit-remaining": "4"}, 4),
        ({"x-ratelimit-remaining-requests": "many"}, 16),
        ({}, 16),
    ],
)
def test_headers_of_rate_limits_bound_the_window(headers, room):
    window = Window(64)
    window.note_answer(window.clock())
    window.note_limits(headers)
    assert window.room == room
