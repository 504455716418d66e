"""What a user gets wrong ends with code 2 and one line that says what, where and what to do."""

import click
import pytest
from command_line import below, commands, fails, run
from examples import kv_example

from posgap.cli.main import build, main
from posgap.data.reading import write_examples
from posgap.foundation.errors import PosgapError
from posgap.foundation.files import read_json


@pytest.fixture
def examples(tmp_path):
    write_examples(tmp_path / "e.jsonl", [kv_example(i) for i in range(3)])
    return tmp_path / "e.jsonl"


def sweep(tmp_path, examples, model_folder, *more):
    return ["sweep", "--examples", examples, "--model", model_folder, "--out", tmp_path / "out", *more]


@pytest.mark.parametrize(
    ("more", "complaint"),
    [
        (
            ["--task", "sort"],
            "Invalid value for '--task': 'sort' is not one of 'kv', 'qa', 'multihop-cot'",
        ),
        (["--n-docs", "0"], "--n-docs: Input should be greater than or equal to 1, got 0"),
        (["--n-docs", "many"], "Invalid value for '--n-docs': 'many' is not a valid integer"),
        (["--positions", "1,x"], "--positions.1: 'x' is not a placement: write a position like 7, or two like 3+7"),
        (["--n-docs", "4", "--positions", "1+2"], "placement 1+2: the task has one gold document"),
        (["--metric", "bleu"], "Invalid value for '--metric': 'bleu' is not one of 'em', 'sub_em', 'answer_words'"),
        (["--dtype", "float8"], "Invalid value for '--dtype': 'float8' is not one of"),
        (["--colour", "red"], "No such option '--colour'"),
        (["--n-docs", "9"], "example kv-0: 5 distractors, but 9 documents need 8"),
        (["--n-docs", "4", "--positions", "5"], "position 5: must lie in 1..4"),
        (["--n-docs", "4", "--max-new-tokens", "500"], "exceed the model's context of 512; lower n_docs"),
    ],
)
def test_bad_options(capsys, tmp_path, examples, model_folder, more, complaint):
    assert complaint in fails(capsys, *sweep(tmp_path, examples, model_folder, *more))
    assert not (tmp_path / "out").exists()


def test_missing_and_corrupt_inputs(capsys, tmp_path, examples, model_folder):
    missing = tmp_path / "none.jsonl"
    assert f"examples: {missing}: " in fails(capsys, *sweep(tmp_path, missing, model_folder))
    examples.write_text('{"id": 1, "gold": []}\n')
    assert "e.jsonl:1: field `id`" in fails(capsys, *sweep(tmp_path, examples, model_folder))


def test_a_folder_that_is_no_model(capsys, tmp_path, examples):
    (tmp_path / "empty").mkdir()
    said = fails(capsys, *sweep(tmp_path, examples, tmp_path / "empty"))
    assert f"{tmp_path / 'empty'}: " in said and "config.json" in said


def test_a_required_option_that_is_missing(capsys):
    assert "Missing option '--model'. (see `posgap sweep --help`)" in fails(capsys, "sweep")
    said = fails(capsys, "distill", "-m", "tiny")
    assert "Missing options '--out', '--examples', '--responses'. (see `posgap distill --help`)" in said
    assert "Missing option '--responses'." in fails(capsys, "distill", "-m", "x", "-o", "y", "--examples", "z")


def test_a_help_names_many_choices_and_help_all_says_what_they_are(capsys):
    def helped(option: str) -> str:
        with pytest.raises(SystemExit):
            main(["sweep", option])
        return capsys.readouterr().out

    shown = helped("--help")
    assert len(shown.splitlines()) < 130
    assert "kv|qa|multihop-cot" in shown and "kv: a key's value" not in shown and "-m, --model TEXT" in shown
    task = " ".join(shown.partition("--task [")[2].partition("--n-docs")[0].split())
    assert task.endswith("YAML file of your own; --help-all says what each is [default: kv]")
    assert "kv: a key's value among JSON records" in " ".join(helped("--help-all").split())


def test_short_names_of_model_and_out_are_those_that_people_know(capsys, tmp_path):
    (tmp_path / "e.jsonl").write_text("")
    said = fails(capsys, "sweep", "-m", tmp_path / "none", "-o", tmp_path / "out", "--examples", tmp_path / "e.jsonl")
    assert "none" in said and "Missing" not in said


def test_options_that_do_not_go_together_are_said_without_all_the_others(capsys, tmp_path):
    asked = ["sweep", "--model", "m", "--examples", "e", "--samples", 3, "--out", tmp_path / "o"]
    said = fails(capsys, *asked, "--header", "X-Key=hunter2222")
    assert "`temperature`" in said and "hunter" not in said


def test_make_and_import(capsys, tmp_path):
    code, _ = run(capsys, "data", "make", "kv", "--out", tmp_path / "kv.jsonl.gz", "--n-examples", 2)
    assert code == 0
    code, shown = run(capsys, "data", "import", "--input", tmp_path / "kv.jsonl.gz", "--out", tmp_path / "e.jsonl")
    assert code == 0 and "imported 2 examples" in shown


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("kv --distractors bm25", "`distractors`"),
        ("two-hop --distractors bm25", "`distractors`"),
        ("qa --n-examples 3", "`n_examples`"),
        ("choice --n-docs 17", "`n_docs` of choice"),
        ("qa", "--examples"),
        ("sand", "'sand'"),
    ],
)
def test_what_a_kind_of_data_does_not_take_is_refused(capsys, tmp_path, monkeypatch, words, complaint):
    monkeypatch.chdir(tmp_path)
    assert complaint in fails(capsys, "data", "make", *words.split(), "--out", "made.jsonl")
    assert not list(tmp_path.iterdir())


def test_a_teacher_without_position_says_what_to_give(capsys, tmp_path, examples, model_folder):
    words = ["teacher", "--examples", examples, "--model", model_folder, "--out", tmp_path / "out", "--n-docs", 4]
    assert "`advantageous`" in fails(capsys, *words)


@pytest.mark.parametrize(
    ("where", "complaint"),
    [("last", "--advantageous.0: 'last' "), ("3+4", "placement 3+4: ")],
)
def test_a_teacher_at_no_placement_of_the_task(capsys, tmp_path, examples, model_folder, where, complaint):
    words = ["teacher", "--examples", examples, "--model", model_folder, "--out", tmp_path / "out", "--n-docs", 4]
    assert complaint in fails(capsys, *words, "--advantageous", where)


def test_a_teacher_that_is_never_right_has_nothing_to_teach(capsys, tmp_path, examples, model_folder):
    write_examples(examples, [kv_example(i).model_copy(update={"answers": ["no hex digit"]}) for i in range(3)])
    words = ["teacher", "--examples", examples, "--model", model_folder, "--out", tmp_path / "out"]
    more = ["--n-docs", 4, "--advantageous", 1, "--max-new-tokens", 1]
    assert " position 1 of 4 " in fails(capsys, *words, *more)


def test_an_unreachable_tracking_server_is_one_clear_line_and_results_stay(
    capsys, tmp_path, examples, model_folder, monkeypatch
):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    code, shown = run(capsys, *sweep(tmp_path, examples, model_folder, "--n-docs", 4, "--max-new-tokens", 2))
    assert code == 0
    (line,) = [line for line in shown.splitlines() if "127.0.0.1:9" in line]
    assert "cannot be reached" in line and "The output will be complete without it" in line
    assert read_json(tmp_path / "out" / "sweep.json")["n_examples"] == 3


def test_key_value_records_are_no_passages(capsys, tmp_path, examples):
    complaint = fails(capsys, "data", "make", "qa", "--examples", examples, "--out", tmp_path / "qa.jsonl")
    assert complaint.startswith(f"{examples}: holds key-value records, but distractors are drawn from passages; make ")


def test_a_gguf_file_is_to_be_served(capsys, tmp_path, examples):
    complaint = fails(capsys, *sweep(tmp_path, examples, tmp_path / "m.GGUF"))
    assert complaint.startswith(f"model: {tmp_path / 'm.GGUF'}: ") and "llama-server" in complaint


def test_an_unknown_place_of_the_question(capsys, tmp_path, examples, model_folder):
    shown = fails(capsys, *sweep(tmp_path, examples, model_folder, "--question", "behind"))
    assert "Invalid value for '--question': 'behind' is not one of 'after', 'before', 'both'" in shown


def test_a_flag_takes_no_value_but_after_an_equals_sign(capsys, tmp_path):
    for command in commands(build()):
        assert "BOOLEAN" not in command.get_help(click.Context(command))
    compare = ["compare", "--out", tmp_path / "out", "--force"]
    # What follows a flag is not its value: it is the first sweep.
    said = fails(capsys, *compare, tmp_path / "a", tmp_path / "b")
    assert all(f"sweeps.{i}: {tmp_path / name}: " in said for i, name in enumerate("ab", start=1))
    assert f"sweeps.1: {tmp_path / 'a'}: " in fails(capsys, *compare[:-1], "--force=no", tmp_path / "a", tmp_path / "b")
    assert "Invalid value for '--force': 'maybe' is not a valid boolean" in fails(
        capsys, *compare[:-1], "--force=maybe", "a", "b"
    )


@pytest.mark.parametrize(
    ("words", "only_new"),
    [([], True), (["--only-new"], True), (["--no-only-new"], False), (["--only-new=false"], False)],
)
def test_a_flag_that_is_set_unless_told_otherwise(words, only_new):
    version = below(below(build())["data"])["version"]
    context = version.make_context("version", ["d", "--model", "m", "--out", "o", *words])
    assert context.params["only_new"] is only_new and context.params["force"] is True


def test_who_stops_what_starts_over_is_promised_nothing(capsys, tmp_path, monkeypatch):
    def interrupted(config):
        raise KeyboardInterrupt

    monkeypatch.setattr("posgap.cli.main.stage_at", lambda _: interrupted)
    code, shown = run(capsys, "merge", tmp_path, "--out", tmp_path / "out")
    assert code == 130 and shown.strip() == "posgap: error: stopped"


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("sweep --model m --examples e --out o --seed -1", "--seed: "),
        ("sweep --model m --examples e --out o --seed 4294967296", "--seed: "),
        ("sweep --model m --examples e --out o --n-docs 1" + "0" * 30, "--n-docs: "),
        ("sweep --model m --examples e --out o --n-docs " + "9" * 5000, "'--n-docs'"),
        ("sweep --model m --examples e --out o --positions " + "9" * 5000, "--positions.0: '999"),
        ("sweep --model m --examples e --out o --timeout inf", "--timeout: "),
        ("sweep --model m --examples e --out o --label a\udcff", "--label: "),
        ("sweep --model m --examples e\udcff --out o", "--examples: "),
        ("compare a --out o", "sweeps: "),
        ("promote --model m --gate g --sweep s --out o --name ../x", "--name: "),
        ("promote --model m --gate g --sweep s --out o --name x'--", "--name: "),
        ("data version d --model m --out o --name x/y", "--name: "),
        ("rollout predict --out o --encoding rope --rope-factors 0,1", "--rope-factors.0: "),
        ("rollout predict --out o --encoding rope --rope-factors 1,nan", "--rope-factors.1: "),
        ("rollout predict --out o --content nan", "--content.0: "),
        ("rollout predict --out o --slope nan", "--slope.0: "),
        ("rollout predict --out o --sequence-length 4000000000", "--sequence-length: "),
        ("preflight --data-train t --data-eval e --base-model m --out o --settings " + "[" * 9999, "nested too deep"),
        ("preflight --data-train t --data-eval e --base-model m --out o --settings [NaN]", "{shards: 4"),
    ],
)  # fmt: skip
def test_values_that_no_run_survives_are_refused_before_it(capsys, tmp_path, monkeypatch, words, complaint):
    monkeypatch.chdir(tmp_path)
    assert complaint in fails(capsys, *words.split())
    assert not list(tmp_path.iterdir())


def test_a_rollout_that_is_no_number_is_said_in_a_line(capsys, tmp_path, monkeypatch):
    scores = "posgap.rollout.architecture_options.rotation_scores"
    monkeypatch.setattr(scores, lambda distances, angles: 1e308 * distances)
    words = ["rollout", "predict", "--sequence-length", 8, "--layers", 1, "--heads", 1, "--out", tmp_path / "out"]
    assert "the rollout overflows" in fails(capsys, *words, "--encoding", "rope")


def break_(monkeypatch, error: Exception) -> None:
    """Has every verb that plans fail like this."""

    def fail(config):
        raise error

    monkeypatch.setattr("posgap.verbs.plan_sweep.plan_sweep", fail)


def test_what_nobody_foresaw_is_one_line_and_its_traceback_a_file(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("POSGAP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PGPASSWORD", "hunter2hunter2")
    break_(monkeypatch, KeyError("no such thing at http://me:hunter2hunter2@host\nand more"))
    code, shown = run(capsys, "plan", "sweep")
    (line,) = shown.splitlines()
    (kept,) = (tmp_path / "cache" / "errors").iterdir()
    assert code == 1 and line.startswith("posgap: internal error: KeyError: 'no such thing at http://***@host")
    assert line.endswith(f"; the traceback is in {kept}; please report it with that file")
    written = kept.read_text()
    assert "Traceback (most recent call last)" in written and "in fail" in written and "posgap 0." in written
    assert "hunter2" not in written + shown


def test_without_a_cache_the_traceback_is_kept_elsewhere(capsys, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("POSGAP_CACHE", str(tmp_path / "file"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    break_(monkeypatch, RecursionError())
    code, shown = run(capsys, "plan", "sweep")
    (kept,) = (tmp_path / "temporary").iterdir()
    assert code == 1 and f"internal error: RecursionError: ; the traceback is in {kept}" in shown


def test_an_error_of_the_system_that_names_no_file_is_told_with_the_nearest_path(capsys, tmp_path, monkeypatch):
    ours: dict = {"__name__": "posgap.somewhere"}
    exec("def write(path): raise OSError(28, 'No space left on device')", ours)
    monkeypatch.setattr("posgap.verbs.plan_sweep.plan_sweep", lambda config: ours["write"](tmp_path / "plan.json"))
    told = f"{tmp_path / 'plan.json'}, or a file beside it: No space left on device"
    assert told == fails(capsys, "plan", "sweep").strip()


def test_a_current_folder_that_was_deleted_is_named_as_such(capsys, tmp_path, monkeypatch):
    break_(monkeypatch, FileNotFoundError(2, "No such file or directory"))
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    there = "the current folder (it was deleted or replaced: cd to one that is there): No such file or directory"
    assert there in fails(capsys, "plan", "sweep")


def test_no_memory_is_no_internal_error(capsys, monkeypatch):
    break_(monkeypatch, MemoryError())
    code, shown = run(capsys, "plan", "sweep")
    assert code == 1 and shown.startswith("posgap: error: out of memory: read or compute less at once")


def test_an_error_has_one_line_and_no_secret(capsys, monkeypatch):
    break_(monkeypatch, PosgapError("http://me:secret@host: said\nno"))
    assert run(capsys, "plan", "sweep") == (2, "posgap: error: http://***@host: said no\n")


def test_secrets_stay_out_of_files_logs_and_mlflow(capsys, tmp_path, mlflow_store, monkeypatch):
    monkeypatch.setenv("POSGAP_WEBHOOK_URL", "https://127.0.0.1:9/hook/4711")
    secrets = ["--message", "at postgresql://me:hunter2@db failed"]
    code, shown = run(capsys, "report", "--out", tmp_path / "out", *secrets)
    assert code == 0, shown
    written = shown + "".join(file.read_text() for file in (tmp_path / "out").iterdir())
    database = mlflow_store.read_bytes()
    assert "4711" not in written and "hunter2" not in written and "postgresql://***@db" in written
    assert b"4711" not in database and b"hunter2" not in database
