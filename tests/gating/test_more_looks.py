"""A gate that goes on by itself: while it lacks examples, and the policy gives more."""

from types import SimpleNamespace

import pytest

from posgap.gating.demands import Policy
from posgap.gating.verdict import next_number


def verdict(outcome="not enough evidence", needs=None, gaps=(), unsure="mean", **policy) -> SimpleNamespace:
    rules = [SimpleNamespace(name="gap", passed=True), SimpleNamespace(name=unsure, passed=False)]
    return SimpleNamespace(outcome=outcome, needs=needs, evidence_gaps=[*gaps], policy=Policy(**policy), rules=rules)


def swept(n, independent=0) -> SimpleNamespace:
    return SimpleNamespace(n_examples=n, n_independent=independent or n)


@pytest.mark.parametrize(
    ("reached", "sweep", "available", "number"),
    [
        (verdict(needs=700), swept(300), 2000, 0),  # a policy that gives no more
        (verdict(needs=700, most_examples=1500), swept(300), 2000, 700),
        (verdict(needs=700, most_examples=600), swept(300), 2000, 600),
        (verdict(needs=700, most_examples=2000), swept(300), 500, 500),  # no more are there
        (verdict(needs=700, most_examples=800), swept(300), 2000, 800),  # the rest is not worth a look of its own
        (verdict(needs=301, most_examples=2000), swept(300), 2000, 480),  # nor are so few more
        (verdict(most_examples=2000), swept(300), 2000, 600),  # no number is known to be enough
        (verdict(needs=700, most_examples=3000), swept(600, 300), 3000, 1400),  # of which two count once
        (verdict(needs=700, most_examples=300), swept(300), 2000, 0),
        (verdict("refused", needs=700, most_examples=1000), swept(300), 2000, 0),
        (verdict("admitted", most_examples=1000), swept(300), 2000, 0),
        (verdict(needs=700, gaps=["1 placement"], most_examples=1000), swept(300), 2000, 0),  # examples are not it
        (verdict(needs=700, unsure="guard longer", most_examples=1500), swept(300), 2000, 0),  # it has its own
        (verdict(needs=100, gaps=["50 examples"], most_examples=1000), swept(50), 2000, 100),
    ],
)
def test_the_next_look_takes_what_is_needed_of_what_there_is(reached, sweep, available, number):
    assert next_number(reached, sweep, available) == number
