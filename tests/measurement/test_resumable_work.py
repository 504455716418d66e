"""What is asked of whom, and in which order, where some prompts are answered already: by a generator that counts."""

import pytest
from examples import kv_example

from posgap.data.reading import read_examples, write_examples
from posgap.foundation.errors import PosgapError
from posgap.generation.generator import Completion
from posgap.measurement.resumption import HANDFUL
from posgap.measurement.sweep_run import SweepRun
from posgap.options.sweep import SweepConfig

N, DOCS = 8, 4


class Counting:
    """Answers rightly, says the same, stops after some prompts, or leaves out each third."""

    def __init__(self, said="", stop=10**9, leaves_out=False):
        self.said, self.stop, self.leaves_out = said, stop, leaves_out
        self.asked, self.parts, self.seeds = 0, [], []

    def generate(self, groups, sampling):
        before = self.asked
        self.seeds.append(sampling.seed)
        for index, group in enumerate(groups):
            for at, prompt in enumerate(group):
                if self.leaves_out and (index + at) % 3 == 0:
                    continue
                if self.asked == self.stop:
                    raise PosgapError("stopped")
                self.asked += 1
                yield index, at, Completion.from_text(self.said or prompt.example.answers[0], [], False)
        self.parts.append(self.asked - before)


@pytest.fixture
def run(tmp_path):
    file = tmp_path / "e.jsonl"
    write_examples(file, [kv_example(number) for number in range(N)])

    def ask(generator, how=None, **options):
        places = {"examples": file, "out": tmp_path / "out", "base_url": "http://localhost/v1"}
        config = SweepConfig(model="m", n_docs=DOCS, **places, **options)
        sweep_run = SweepRun.plan(config.sweep_settings(), config.builder(), read_examples(file))
        sweep_run.run(lambda: generator, "go on", **how or {})
        return sweep_run.predictions

    return ask


def test_a_handful_goes_first_and_what_is_answered_is_not_asked_again(run):
    first, again = Counting(), Counting()
    rows = run(first)
    assert first.parts == [HANDFUL, N * DOCS - HANDFUL] and len(rows) == N * DOCS
    assert run(again) == rows and not again.asked


def test_nothing_more_is_sent_if_the_handful_is_hopeless(run):
    hopeless, later = Counting("same"), Counting()
    with pytest.raises(PosgapError, match=" 16 prompts "):
        run(hopeless)
    run(later)
    assert hopeless.parts == [HANDFUL] and later.parts == [N * DOCS - HANDFUL]


def test_an_interrupted_run_goes_on_and_draws_other_samples(run):
    stopped, later = Counting(stop=20), Counting()
    with pytest.raises(PosgapError, match="stopped"):
        run(stopped, temperature=1.0)
    run(later, temperature=1.0)
    assert later.parts == [N * DOCS - 20] and (stopped.seeds, later.seeds) == ([0, 0], [20])


def test_answers_that_are_there_are_read_as_they_are_and_the_others_named(run):
    part, rest = Counting(leaves_out=True), Counting()
    with pytest.raises(PosgapError, match=" 11 of 32 answers "):
        run(part, {"answers_are_there": True}, temperature=1.0)
    run(rest, {"answers_are_there": True}, temperature=1.0)
    assert (part.parts, rest.parts, rest.seeds) == ([21], [11], [0])


def test_a_comparison_looks_at_the_answers_itself(run):
    seen, generator = [], Counting()
    run(generator, {"first_answers": lambda *asked: seen.append(asked)})
    assert generator.parts == [N * DOCS] == [len(seen)]


def test_what_names_answers_is_recorded_and_changes_with_its_parameter(tmp_path):
    """A further look compares what names the answers of two sweeps by what they recorded."""
    places = {"examples": tmp_path / "e.jsonl", "out": tmp_path / "out"}
    settings = SweepConfig(model="m", base_url="http://localhost/v1", **places).sweep_settings()
    assert settings.response_key.keys() <= settings.recorded.keys()
    changed = settings.with_parameters(baselines=["oracle"], label="other")
    assert (changed.baselines, changed.response_key["baselines"], changed.label) == (["oracle"], ["oracle"], "other")
    assert changed.recorded == settings.recorded | {"baselines": ["oracle"], "label": "other"}
    assert changed.response_key == settings.response_key | {"baselines": ["oracle"]}
    assert "mitigation" not in settings.as_recorded
