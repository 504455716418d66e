"""A sweep that is interrupted goes on where it was: counted by the requests that a local endpoint sees."""

import itertools
import json
import os
import signal
import time
from zlib import crc32

import pytest
from aiohttp.client_proto import ResponseHandler
from endpoint import Endpoint, retrieve, served
from examples import kv_example
from warm import SERVER
from warm_forks import command
from written_sweeps import write_sweep

from posgap.data.reading import write_examples
from posgap.foundation.errors import BadOption, MissingPackage, PosgapError, TerminationSignal
from posgap.foundation.files import read_jsonl, work_folder
from posgap.foundation.interruption import raise_on_termination
from posgap.generation.generator import Completion, Usage
from posgap.measurement import resumption
from posgap.measurement.sweeps import read_sweep
from posgap.measurement.unfinished import Unfinished
from posgap.options.sweep import SweepConfig
from posgap.options.teacher import TeacherConfig
from posgap.verbs import teacher as teacher_stage
from posgap.verbs.sweep import sweep_model
from posgap.verbs.teacher import teacher

N, DOCS = 12, 4


@pytest.fixture
def options(tmp_path, monkeypatch) -> dict:
    monkeypatch.setenv("POSGAP_RETRIES", "0")
    write_examples(tmp_path / "e.jsonl", [kv_example(i) for i in range(N)])
    shared = {"examples": tmp_path / "e.jsonl", "model": "served", "backend": "openai", "n_docs": DOCS}
    return {**shared, "out": tmp_path / "out", "concurrency": 2}


def test_the_endpoint_is_swept_like_any_model(options, tmp_path):
    # It knows the first document only.
    only_first = Endpoint(lambda text: text.split('": "')[1].split('"')[0])
    with served(only_first) as endpoint:
        result = read_sweep(sweep_model(SweepConfig(base_url=endpoint.url, **options)))
    assert result.accuracy[0] == 100 and result.worst.accuracy < 50
    assert endpoint.seen.total() == N * DOCS and result.model == "served"
    assert not list(tmp_path.glob(".posgap-*"))
    ids = [row["id"] for _, row in read_jsonl(tmp_path / "out" / "predictions.jsonl")]
    assert ids == [f"kv-{i}" for i in range(N) for _ in range(DOCS)]


def interrupted(endpoint: Endpoint, options: dict, number: signal.Signals) -> tuple[int, str]:
    """Sends a signal to a sweep's process when four prompts are answered; returns its exit code and last line."""
    words = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    quiet = {**os.environ, "MLFLOW_TRACKING_URI": "http://127.0.0.1:9"}
    verb, log = ["sweep", f"--base-url={endpoint.url}"], options["out"].with_suffix(".log")
    process = SERVER.Process(target=command, args=([*verb, *words], log, quiet))
    process.start()
    work, deadline = work_folder(options["out"]), time.monotonic() + 120
    while time.monotonic() < deadline and sum(f.read_bytes().count(b"\n") for f in work.glob("*")) < 4:
        assert process.is_alive()
        time.sleep(0.02)
    os.kill(process.pid, number)
    process.join()
    return process.exitcode, log.read_text().splitlines()[-1]


@pytest.mark.parametrize(
    ("number", "code", "how"), [(signal.SIGINT, 130, "stopped"), (signal.SIGTERM, 143, "stopped by SIGTERM")]
)
def test_who_stops_a_sweep_is_told_that_it_goes_on(options, number, code, how):
    with served(Endpoint(seconds=0.1)) as endpoint:
        ended = interrupted(endpoint, options, number)
        assert ended == (code, f"posgap: error: {how}; run the same command again to resume")
        endpoint.seen.clear()
        endpoint.seconds = 0
        sweep_model(SweepConfig(base_url=endpoint.url, **options))
        assert endpoint.seen.total() <= N * DOCS - 4


@pytest.mark.parametrize("moment", [0, 1, 4, 9])
def test_a_signal_that_comes_as_an_answer_is_read_stops_the_sweep(options, monkeypatch, moment):
    """asyncio takes an `Exception` in a connection's callback for a broken connection, and goes on."""
    received, parts = ResponseHandler.data_received, itertools.count()

    def data_received(self, data):
        if next(parts) == moment:
            signal.raise_signal(signal.SIGTERM)
        received(self, data)

    monkeypatch.setattr(ResponseHandler, "data_received", data_received)
    before = signal.getsignal(signal.SIGTERM)
    raise_on_termination()
    try:
        with served(Endpoint()) as endpoint, pytest.raises(TerminationSignal, match="SIGTERM"):
            sweep_model(SweepConfig(base_url=endpoint.url, **options))
    finally:
        signal.signal(signal.SIGTERM, before)
    assert endpoint.seen.total() < N * DOCS


def filtered(text: str) -> str | tuple[str, str]:
    """Answers, but to some prompts, the same each time, a content filter objects."""
    return ("", "content_filter") if crc32(text.encode()) % 5 == 0 else retrieve(text)


def test_a_killed_process_loses_no_answer_that_was_finished(options, tmp_path):
    work, options["max_unanswered"] = work_folder(tmp_path / "out"), 100
    with served(Endpoint(filtered, seconds=0.1)) as endpoint:
        interrupted(endpoint, options, signal.SIGKILL)
        (file,) = work.glob("answers-*.jsonl")
        finished = file.read_bytes().count(b"\n")
        assert 4 <= finished < N * DOCS and not (tmp_path / "out").exists()
        with open(file, "ab") as torn:
            torn.write('{"example": 11, "number": 3, "text": "ü'.encode()[:-1])
        time.sleep(0.3)  # what was under way is over
        endpoint.seen.clear()
        endpoint.seconds = 0
        result = read_sweep(sweep_model(SweepConfig(base_url=endpoint.url, **options)))
        assert endpoint.seen.total() == N * DOCS - finished
        whole = sweep_model(SweepConfig(base_url=endpoint.url, **options | {"out": tmp_path / "whole"}))
    assert not work.exists() and result.outcomes.refused > 4
    assert (tmp_path / "out" / "predictions.jsonl").read_bytes() == (whole / "predictions.jsonl").read_bytes()


def test_an_endpoint_that_gives_up_is_gone_on_with_and_only_responses_count(options, tmp_path):
    with served(Endpoint()) as endpoint:
        endpoint.misbehave = lambda text, times: (503, {}, "") if endpoint.seen.total() > 3 * DOCS else None
        with pytest.raises(PosgapError, match=" 1 tries: 503"):
            sweep_model(SweepConfig(base_url=endpoint.url, **options | {"concurrency": 1}))
        asked_before = {text for text, _ in endpoint.seen.items()}
        endpoint.misbehave, finished = lambda text, times: None, _finished(tmp_path)
        assert finished >= 3 * DOCS - 2 and len(asked_before) > finished
        endpoint.seen.clear()
        # Neither how the endpoint is asked, nor how answers are judged, changes what it answers.
        sweep_model(SweepConfig(base_url=endpoint.url, **options | {"concurrency": 5, "metric": "em", "limit": 10}))
        assert endpoint.seen.total() == 10 * DOCS - finished


def test_other_prompts_are_asked_anew(options, tmp_path):
    with served(Endpoint()) as endpoint:
        endpoint.misbehave = lambda text, times: (500, {}, "") if endpoint.seen.total() > 3 * DOCS else None
        with pytest.raises(PosgapError):
            sweep_model(SweepConfig(base_url=endpoint.url, **options))
        endpoint.misbehave = lambda text, times: None
        endpoint.seen.clear()
        sweep_model(SweepConfig(base_url=endpoint.url, **options | {"n_docs": 3}))
        assert endpoint.seen.total() == N * 3


def _finished(tmp_path) -> int:
    return sum(f.read_bytes().count(b"\n") for f in work_folder(tmp_path / "out").iterdir())


def test_responses_survive_whatever_they_hold(tmp_path):
    odd = [Completion(text, []) for text in ("a\nb", "\u2028", 'quote " and ü')]
    odd += [
        Completion("", [], "refused", reason="a filter", usage=Usage(7, 0)),
        Completion("", [], "truncated", thoughts="hm,\nwell", cut=True, usage=Usage(7, 9, 9)),
    ]
    unfinished = Unfinished(tmp_path, {"a": 1})
    for number, completion in enumerate(odd):
        unfinished.add(3, number, completion._replace(token_ids=[1, 2]))
    kept = Unfinished(tmp_path, {"a": 1}).completions
    assert kept == unfinished.completions == {(3, number): completion for number, completion in enumerate(odd)}
    assert Unfinished(tmp_path, {"a": 2}).completions == {}


def test_what_failed_is_asked_again(tmp_path):
    unfinished = Unfinished(tmp_path, {})
    unfinished.add(0, 0, Completion("", [], "failed", reason="500"))
    unfinished.add(0, 1, Completion("second", []))
    again = Unfinished(tmp_path, {})
    assert list(again.completions) == [(0, 1)]
    again.add(0, 0, Completion("first", []))
    kept = Unfinished(tmp_path, {}).completions
    assert {number: completion.text for (_, number), completion in kept.items()} == {0: "first", 1: "second"}


@pytest.mark.parametrize("cut", range(1, 40, 6))
def test_a_torn_line_is_dropped_and_written_over(tmp_path, cut):
    unfinished = Unfinished(tmp_path, {})
    unfinished.add(0, 0, Completion("first", []))
    whole = unfinished.file.read_bytes()
    unfinished.add(0, 1, Completion("second ü", []))
    unfinished.file.write_bytes(unfinished.file.read_bytes()[: len(whole) + cut])
    again = Unfinished(tmp_path, {})
    assert again.completions == {(0, 0): Completion("first", [])}
    again.add(0, 1, Completion("new", []))
    assert [json.loads(line)["text"] for line in again.file.read_text().splitlines()] == ["first", "new"]


OLDER = b'{"example": 1, "responses": ["a", ""]}'  # as posgap kept answers once, without outcomes


@pytest.mark.parametrize(
    "spoiled", [bytes(30), b"[1]", b'{"example": 1}', b"\xff\xfe", OLDER, b'{"example": -1, "number": 0, "text": ""}']
)
def test_a_spoiled_line_is_dropped_with_what_follows_it(tmp_path, spoiled):
    unfinished = Unfinished(tmp_path, {})
    unfinished.add(0, 0, Completion("first", []))
    with open(unfinished.file, "ab") as file:
        file.write(spoiled + b"\n")
    unfinished.add(2, 0, Completion("third", []))
    assert list(Unfinished(tmp_path, {}).completions) == [(0, 0)]
    assert unfinished.file.read_text() == '{"example": 0, "number": 0, "text": "first"}\n'


def test_the_backend_wants_an_address(options):
    with pytest.raises(BadOption, match="`base_url`"):
        sweep_model(SweepConfig(**options))


def test_vllm_that_is_not_installed_is_named(options, model_folder):
    try:
        import vllm  # noqa: F401
    except ImportError:
        with pytest.raises(MissingPackage, match="^backend vllm: "):
            sweep_model(SweepConfig(**options | {"backend": "vllm", "model": str(model_folder)}))
    else:
        pytest.skip("vllm is installed")


class Scripted:
    """Answers with the value that is asked for, and its number as the token ids; after `most` answers it fails."""

    def __init__(self, most: int, wrong: bool = False):
        self.most, self.wrong, self.asked = most, wrong, []

    def generate(self, groups, sampling):
        for index, group in enumerate(groups):
            for at, prompt in enumerate(group):
                if len(self.asked) == self.most:
                    raise PosgapError("the machine is gone")
                self.asked.append(prompt.text)
                answer = "none" if self.wrong else retrieve(prompt.text)
                yield index, at, Completion(answer, list(prompt.token_ids[-3:]))


@pytest.fixture
def asked_of(tmp_path, model_folder, monkeypatch):
    """Runs a teacher on a generator; returns the rows of its responses."""

    def run(generator, out="out", **options):
        shared = {"examples": tmp_path / "e.jsonl", "model": str(model_folder), "n_docs": DOCS, "advantageous": "2"}
        with monkeypatch.context() as patched:
            patched.setattr(resumption, "open_generator", lambda config, builder: generator)
            made = teacher(TeacherConfig(**shared | {"out": tmp_path / out} | options))
        return [row for _, row in read_jsonl(made / "responses.jsonl")]

    return run


def test_a_teacher_goes_on_too_and_ends_as_if_it_had_not_been_interrupted(options, asked_of, tmp_path):
    broken, rest = Scripted(5), Scripted(N)
    with pytest.raises(PosgapError, match="the machine is gone"):
        asked_of(broken)
    rows = asked_of(rest)
    assert len(broken.asked) == 5 and len(rest.asked) == N - 5 and not set(broken.asked) & set(rest.asked)
    assert rows == asked_of(Scripted(N), "whole") and all(row["token_ids"] and row["correct"] for row in rows)
    # Of another placement nothing is known, and of fewer examples all.
    with pytest.raises(PosgapError, match="the machine is gone"):
        asked_of(Scripted(3), "third")
    elsewhere, fewer = Scripted(N), Scripted(N)
    asked_of(fewer, "third", limit=2)
    assert not fewer.asked
    with pytest.raises(PosgapError, match="the machine is gone"):
        asked_of(Scripted(3), "fourth")
    asked_of(elsewhere, "fourth", advantageous="1")
    assert len(elsewhere.asked) == N


def test_a_teacher_at_several_placements_goes_on_within_an_example(options, asked_of):
    broken, rest = Scripted(5), Scripted(2 * N)
    with pytest.raises(PosgapError, match="the machine is gone"):
        asked_of(broken, advantageous="1,3")
    rows = asked_of(rest, advantageous="1,3")
    assert len(rest.asked) == 2 * N - 5 and not set(broken.asked) & set(rest.asked)
    assert rows == asked_of(Scripted(2 * N), "whole", advantageous="1,3")
    assert [row["placement"] for row in rows] == [[1], [3]] * N


def test_a_teacher_that_is_never_right_is_stopped_early(options, asked_of, tmp_path, monkeypatch):
    monkeypatch.setattr(teacher_stage, "MAX_WRONG", 4)
    wrong = Scripted(N, wrong=True)
    with pytest.raises(PosgapError, match=" 4 responses at position 2 of 4 "):
        asked_of(wrong)
    assert len(wrong.asked) == 4
    assert len(asked_of(Scripted(N, wrong=True), "kept", keep_incorrect=True)) == N


def test_a_teacher_asks_nothing_where_its_sweep_has_no_right_answer(options, asked_of, tmp_path):
    shape = {"n_docs": 4, "placements": [[1], [2], [3], [4]]}
    untouched, swept = Scripted(N), {"sweep": write_sweep(tmp_path / "sweep", [0.0] * 4, **shape), "advantageous": ""}
    with pytest.raises(PosgapError, match=f"^{tmp_path / 'sweep'}: "):
        asked_of(untouched, "swept", **swept)
    assert not untouched.asked
    assert len(asked_of(Scripted(N, wrong=True), "kept", keep_incorrect=True, **swept)) == N
