"""`posgap sweep MODEL`: a first look with nothing but a model."""

import json
import logging
import shlex
import subprocess
import sys

import pytest
from answerers import OFF, Thinker
from endpoint import Endpoint, served
from examples import kv_example

from posgap.cli.main import main
from posgap.data.reading import read_examples, write_examples
from posgap.foundation.errors import PosgapError
from posgap.foundation.files import write_jsonl
from posgap.generation import backends
from posgap.measurement.sweeps import read_sweep
from posgap.options.sweep import SweepConfig, SweepVerbConfig
from posgap.tasks.placements import spread_placements
from posgap.tasks.prompts import PromptBuilder
from posgap.tasks.registry import TASKS
from posgap.verbs import first_look
from posgap.verbs.sweep import sweep

PLACES = {"out": "look", "examples": "look.examples.jsonl.gz"}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def endpoint():
    with served(Endpoint()) as endpoint:
        yield endpoint


def run(*words) -> int:
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    return ended.value.code or 0


def test_a_model_alone_is_enough(folder, endpoint, capsys):
    assert run("sweep", f"{endpoint.url}#served") == 0
    out, err = capsys.readouterr()
    place = folder / "runs" / f"sweep-127.0.0.1-{endpoint.url.split(':')[2].removesuffix('/v1')}-served"
    swept = read_sweep(place)
    assert swept.positions == [1, 6, 10, 15, 20] and swept.n_examples == 20
    assert "posgap | using 20 examples of 20 documents: 100 prompts, about " in err
    lines = out.splitlines()
    assert [line.split()[0] for line in lines[:5]] == ["1", "6", "10", "15", "20"] and "████" in lines[0]
    assert lines[6].startswith("gap 0.0 points (0.0 to ") and lines[6].endswith(
        ", of 20 examples of the task kv with 20 documents"
    )
    assert lines[7].startswith("There is no evidence") and "p = 1.000" in lines[7]
    assert lines[8] == f"page: {(place / 'sweep.html').as_uri()}"

    asked = endpoint.seen.total()
    assert asked == 2 + 3 * 5 + 100
    assert run("sweep", f"{endpoint.url}#served") == 0  # which does nothing, and shows the same
    assert capsys.readouterr().out == out and endpoint.seen.total() == asked

    command = shlex.split(lines[-1])
    assert command[:2] == ["posgap", "sweep"] and lines[-3].strip().startswith("posgap data make kv")
    assert "--n-docs 20" in lines[-3]
    write_examples(folder / command[command.index("--examples") + 1], [kv_example(number, 20) for number in range(2)])
    assert run(*command[1:], "--estimate") == 0  # the command for the real thing is one that works
    assert "40 prompts" in capsys.readouterr().out


def test_a_look_that_broke_off_goes_on_with_the_same_examples(folder, endpoint, monkeypatch):
    look = ["sweep", f"{endpoint.url}#served", "--n-docs", "5", "--concurrency", "1", "--out", "look"]
    endpoint.misbehave = lambda text, times: (401, {}, "no") if endpoint.seen.total() > 60 else None
    assert run(*look) == 2
    made, asked = (folder / PLACES["examples"]).read_bytes(), endpoint.seen.total()
    endpoint.misbehave = lambda text, times: None
    with monkeypatch.context() as patched:
        patched.setattr(first_look, "_choose_examples", lambda *_: pytest.fail("the prompts are timed again"))
        assert run(*look) == 0
    assert (folder / PLACES["examples"]).read_bytes() == made
    assert endpoint.seen.total() - asked == 100 - (60 - 7) and not (folder / ".posgap-look").exists()

    before = endpoint.seen.total()
    assert run(*look[:3], "3", *look[4:]) == 2 and endpoint.seen.total() == before  # another look replaces none
    assert run(*look[:3], "3", *look[4:], "--force") == 0
    assert read_sweep(folder / "look").n_docs == 3
    assert run(*look[:3], "3", *look[4:], "--seed", "1") == 2  # and so are other examples
    assert run(*look[:3], "3", *look[4:], "--seed", "1", "--force") == 0
    assert read_sweep(folder / "look").settings["seed"] == 1


def test_json_has_the_sweep(folder, endpoint, capsys):
    assert run("sweep", f"{endpoint.url}#served", "--n-docs", "5", "--out", "mine", "--json") == 0
    assert json.loads(capsys.readouterr().out)["n_docs"] == 5
    assert (folder / "mine" / "sweep.html").exists() and (folder / "mine.examples.jsonl.gz").exists()


@pytest.mark.parametrize(
    ("seconds", "n_docs", "n_examples", "timed"),
    [
        (1e-4, 20, 20, 3),
        (0.05, 20, 20, 3),
        (0.1, 10, 20, 2),
        (0.2, 5, 20, 1),
        (1.0, 5, 4, 1),
        (1.5, 5, 4, 0),
        (0.31, 5, 14, 1),
    ],
)
def test_prompts_are_as_long_as_twenty_examples_leave_time(
    seconds, n_docs, n_examples, timed, folder, endpoint, monkeypatch, caplog
):
    """`seconds` is what a document of a prompt takes."""
    asked = []

    def take(config, build, generator, prompts):
        asked.append(prompts[0].text.count('": "'))
        return seconds * asked[-1]

    monkeypatch.setattr(first_look, "_time", take)
    with caplog.at_level(logging.INFO):
        examples, _ = first_look._choose_examples(SweepVerbConfig(model="m", base_url=endpoint.url, out="look"))
    assert len(examples[0].records) == n_docs and len(examples) == n_examples
    assert asked[2:] == [5, 10, 20][:timed], "the first one warms up, and the second says whether there is time"
    prompts = n_examples * (3 if n_examples == 4 else 5)  # the fewest examples are asked at fewer positions
    said = f"using {n_examples} examples of {n_docs} documents: {prompts} prompts, about "
    assert f"{said}{prompts * seconds * n_docs:.0f} s" in caplog.text


def test_an_example_of_many_prompts_is_asked_as_many_in_all(folder, endpoint, monkeypatch):
    monkeypatch.setattr(first_look, "_time", lambda *_: 1e-4)
    config = SweepVerbConfig(model="m", base_url=endpoint.url, task="multihop-cot", out="look")
    examples, _ = first_look._choose_examples(config)
    prompts = len(spread_placements(20, n_gold=2))
    assert prompts > 5 and len(examples) == max(first_look.MIN_EXAMPLES, 100 // prompts)


def test_prompts_fit_into_the_model_s_context(folder, tokenizer, monkeypatch):
    def build(context: int) -> PromptBuilder:
        return PromptBuilder(TASKS["kv"], tokenizer, context, 20)

    config = SweepVerbConfig(model="m", out="look")
    ten = max(len(prompt.token_ids) for prompt in first_look._build_prompts(config, build(10**6), 10))
    monkeypatch.setattr(first_look, "_time", lambda *_: 1e-4)
    monkeypatch.setattr(first_look, "_open", lambda config: (build(ten + 20), None))
    examples, _ = first_look._choose_examples(config)
    assert (len(examples), len(examples[0].records)) == (20, 10)
    monkeypatch.setattr(first_look, "_open", lambda config: (build(100), None))
    with pytest.raises(PosgapError, match=" 100; .*max_new_tokens"):
        first_look._choose_examples(config)


def test_a_model_on_this_machine_is_loaded_once(folder, model_folder, monkeypatch, caplog):
    loaded = []
    load = backends.load_model
    monkeypatch.setattr(backends, "load_model", lambda *given: loaded.append(given) or load(*given))
    monkeypatch.setattr(first_look, "EXAMPLES", first_look.MIN_EXAMPLES)
    sweep(SweepVerbConfig(model=str(model_folder), max_new_tokens=2, n_docs=5, out="look"))
    assert len(loaded) == 1 and read_sweep(folder / "look").n_examples == first_look.MIN_EXAMPLES
    sweep(SweepVerbConfig(model=str(model_folder), max_new_tokens=2, n_docs=5, out="look", force=True))
    assert len(loaded) == 2, "what stayed open for one look is not for the next"


def test_thinking_of_an_endpoint_is_turned_off_in_a_first_look(folder):
    with served(Thinker(lambda body: body.get("chat_template_kwargs") == OFF)) as endpoint:
        assert run("sweep", f"{endpoint.url}#served", "--n-docs", "3", "--out", "look") == 0
    swept = read_sweep(folder / "look")
    assert (swept.mean, swept.asked.template_args) == (100, OFF)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--lengths", "1k"], "--lengths: is of examples; give --examples"),
        (["--estimate"], "--estimate: is of examples; give --examples"),
        (["--baselines", "oracle"], "--baselines: is of examples; give --examples"),
        (["--out", "s3://bucket/out"], "--out: made examples are written beside it: write to this machine"),
    ],
)
def test_what_a_first_look_cannot_do_is_one_line(words, complaint, endpoint, capsys):
    assert run("sweep", f"{endpoint.url}#served", *words) == 2
    assert complaint in capsys.readouterr().err and not endpoint.seen


def test_a_sweep_of_given_examples_has_a_place_too(folder, endpoint, capsys):
    write_examples(folder / "mine.jsonl.gz", [kv_example(number, 5) for number in range(2)])
    words = ["sweep", f"{endpoint.url}#org/m", "--examples", "mine.jsonl.gz", "--n-docs", "5"]
    assert run(*words, "--estimate") == 0 and "10 prompts" in capsys.readouterr().out
    assert run(*words, "--json") == 0 and json.loads(capsys.readouterr().out)["n_examples"] == 2
    assert read_sweep(*(folder / "runs").glob("sweep-127.0.0.1-*-m-mine")).n_examples == 2


def test_the_commands_for_reliable_figures_ask_as_the_look_did(folder, endpoint, monkeypatch, capsys):
    monkeypatch.setenv("GATEWAY", "swordfish")
    endpoint.answer = lambda text: ("Well, let me", "length")
    asked = ["--seed", "3", "--template-args", '{"enable_thinking": false}', "--system", "Be short.", "--stop", "END"]
    secret = ["--body", '{"top_p": 0.5, "api_key": "salmon-and-herring"}', "--header", "X-Key=$GATEWAY trout-and-carp"]
    look = ["sweep", f"{endpoint.url}#served", "--n-docs", "3", "--limit", "2", *asked, *secret]
    assert run(*look, "--out", "look") == 0
    out = capsys.readouterr().out
    *made, command = [shlex.split(line) for line in out.splitlines() if line.startswith("  posgap")]
    said = dict(zip(command[2::2], command[3::2], strict=True))
    assert said["--max-new-tokens"] == str(2 * first_look.ANSWER), "as the first answers say, which are cut"
    assert said["--header"] == "X-Key=VALUE" and "trout" not in out and "salmon" not in out
    assert json.loads(said["--template-args"]) == OFF and json.loads(said["--stop"]) == ["END"]
    assert (said["--system"], said["--seed"], said["--base-url"]) == ("Be short.", "3", endpoint.url)
    assert "--limit" not in said and "--backend" not in said and made[0][4:6] == ["--seed", "3"]
    write_examples(folder / said["--examples"], [kv_example(number, 3) for number in range(2)])
    assert run(*command[1:], "--estimate") == 0


def test_the_examples_of_another_task_can_be_made_too(folder, capsys):
    config = SweepConfig(model="m", dtype="float32", task="multihop-cot", n_docs=10, out="look", examples="made")
    write_jsonl(folder / "predictions.jsonl", [])
    made, sweep = first_look.reliable_commands(config, folder)
    assert sweep.startswith(
        "posgap sweep --model m --dtype float32 --task multihop-cot --examples look-300.examples.jsonl.gz --n-docs"
    )
    assert run(*shlex.split(made)[1:]) == 0
    examples = read_examples("look-300.examples.jsonl.gz")
    assert len(examples[0].gold) == 2 and len(examples) == 300


def test_a_look_at_nothing_ends_before_the_sweep_and_leaves_nothing(folder, endpoint, monkeypatch, capsys):
    monkeypatch.setenv("POSGAP_RETRIES", "0")
    endpoint.misbehave = lambda text, times: (500, {}, '{"error": "no GPU"}')
    assert run("sweep", f"{endpoint.url}#served") == 2
    said = capsys.readouterr().err
    assert "served: no answer to the first prompt: 500" in said and "no GPU" in said
    assert endpoint.seen.total() == 1 and "documents a prompt" not in said
    assert run("sweep", "./nowhere") == 2 and "./nowhere: " in capsys.readouterr().err
    assert not list(folder.rglob("*.gz"))


@pytest.mark.parametrize("absolute", [False, True])
def test_an_output_may_have_the_name_of_the_model_at_a_server(absolute, folder, endpoint):
    write_examples(folder / "e.jsonl", [kv_example(number, 5) for number in range(2)])
    out = folder / "m1" if absolute else "m1"
    for _ in range(2):  # the second time it is there
        assert run("sweep", f"{endpoint.url}#m1", "--examples", "e.jsonl", "--n-docs", "5", "--out", out) == 0
    assert endpoint.seen.total() == 10 and read_sweep(folder / "m1").model_digest == ""


def test_a_folder_that_is_no_model_is_told_before_torch_is_imported(folder):
    (folder / "empty").mkdir()
    program = """if True:
        import sys
        from posgap.cli.main import main
        try:
            main(["sweep", "empty"])
        except SystemExit as ended:
            assert ended.code == 2 and "torch" not in sys.modules
    """
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0 and "empty: no model to load here: config.json is missing; give" in done.stderr


def test_help_shows_that_the_model_may_come_first(capsys):
    assert run("sweep", "--help") == 0
    assert "Usage: posgap sweep [MODEL] [OPTIONS]" in capsys.readouterr().out
    assert run("compare", "--help") == 0
    assert "[MODEL]" not in capsys.readouterr().out
