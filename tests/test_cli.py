"""What a user gets wrong ends with code 2 and one line that says what, where and what to do."""

import click
import pytest
from conftest import kv_example

from posgap.cli import build, main
from posgap.files import read_json
from posgap.tasks.examples import write_examples


def run(capsys, *words) -> tuple[int, str]:
    with pytest.raises(SystemExit) as stopped:
        main([str(word) for word in words])
    return stopped.value.code or 0, capsys.readouterr().err


def fails(capsys, *words) -> str:
    code, shown = run(capsys, *words)
    errors = [line for line in shown.splitlines() if "error" in line]
    assert code == 2 and len(errors) == 1 and "Traceback" not in shown, shown
    return errors[0].removeprefix("posgap: error: ")


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
        (["--positions", "1,x"], "--positions.1: 'x' is no placement: write a position like 7, or two like 3+7"),
        (["--n-docs", "4", "--positions", "1+2"], "placement 1+2: the task has one gold document"),
        (["--metric", "bleu"], "Invalid value for '--metric': 'bleu' is not one of 'em', 'sub_em', 'f1'"),
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
    assert f"examples: {missing}: no such file" in fails(capsys, *sweep(tmp_path, missing, model_folder))
    examples.write_text('{"id": 1}\n')
    assert "e.jsonl:1: field `id`" in fails(capsys, *sweep(tmp_path, examples, model_folder))


def test_a_folder_that_is_no_model(capsys, tmp_path, examples):
    (tmp_path / "empty").mkdir()
    assert f"{tmp_path / 'empty'}: no tokenizer to load here" in fails(
        capsys, *sweep(tmp_path, examples, tmp_path / "empty")
    )


def test_a_required_option_that_is_missing(capsys):
    assert "Missing option '--out'. (see `posgap sweep --help`)" in fails(capsys, "sweep")


def test_make_and_import(capsys, tmp_path):
    code, _ = run(capsys, "data", "make", "kv", "--out", tmp_path / "kv.jsonl.gz", "--n-examples", 2)
    assert code == 0
    code, shown = run(capsys, "data", "import", "--input", tmp_path / "kv.jsonl.gz", "--out", tmp_path / "e.jsonl")
    assert code == 0 and "imported 2 examples" in shown


def test_a_teacher_without_position_says_what_to_give(capsys, tmp_path, examples, model_folder):
    words = ["teacher", "--examples", examples, "--model", model_folder, "--out", tmp_path / "out", "--n-docs", 4]
    assert "give `advantageous`, or a `sweep`" in fails(capsys, *words)


@pytest.mark.parametrize(
    ("where", "complaint"),
    [("last", "--advantageous: 'last' is no placement"), ("3+4", "placement 3+4: the task has one gold document")],
)
def test_a_teacher_at_no_placement_of_the_task(capsys, tmp_path, examples, model_folder, where, complaint):
    words = ["teacher", "--examples", examples, "--model", model_folder, "--out", tmp_path / "out", "--n-docs", 4]
    assert complaint in fails(capsys, *words, "--advantageous", where)


def test_a_teacher_that_is_never_right_has_nothing_to_teach(capsys, tmp_path, examples, model_folder):
    write_examples(examples, [kv_example(i).model_copy(update={"answers": ["no hex digit"]}) for i in range(3)])
    words = ["teacher", "--examples", examples, "--model", model_folder, "--out", tmp_path / "out"]
    more = ["--n-docs", 4, "--advantageous", 1, "--max-new-tokens", 1]
    assert "no response at position 1 of 4 is correct" in fails(capsys, *words, *more)


def test_an_unreachable_tracking_server_is_one_clear_line_and_results_stay(
    capsys, tmp_path, examples, model_folder, monkeypatch
):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    code, shown = run(capsys, *sweep(tmp_path, examples, model_folder, "--n-docs", 4, "--max-new-tokens", 2))
    assert code == 0
    (line,) = [line for line in shown.splitlines() if "127.0.0.1:9" in line]
    assert "cannot be reached" in line and "results are kept locally" in line
    assert read_json(tmp_path / "out" / "sweep.json")["n_examples"] == 3


def test_key_value_records_are_no_passages(capsys, tmp_path, examples):
    complaint = fails(capsys, "data", "make", "qa", "--examples", examples, "--out", tmp_path / "qa.jsonl")
    assert complaint == f"{examples}: key-value records are no passages; `make kv` makes those"


def test_a_diagnosis_needs_a_sweep(capsys, tmp_path, examples, model_folder):
    given = ["--sweep", tmp_path / "none", "--examples", examples, "--model", model_folder]
    complaint = fails(capsys, "diagnose", *given, "--out", tmp_path / "out")
    assert complaint == f"sweep: {tmp_path / 'none'}: no such file or folder"


def test_an_unknown_place_of_the_question(capsys, tmp_path, examples, model_folder):
    shown = fails(capsys, *sweep(tmp_path, examples, model_folder, "--question", "behind"))
    assert "Invalid value for '--question': 'behind' is not one of 'after', 'before', 'both'" in shown


def commands(group: click.Group) -> list[click.Command]:
    below = group.commands.values()
    return [
        each for command in below for each in (commands(command) if isinstance(command, click.Group) else [command])
    ]


def test_a_flag_takes_no_value_but_after_an_equals_sign(capsys, tmp_path):
    for command in commands(build()):
        assert "BOOLEAN" not in command.get_help(click.Context(command))
    compare = ["compare", "--out", tmp_path / "out", "--force"]
    # What follows a flag is not its value: it is the first sweep.
    assert f"sweeps.1: {tmp_path / 'a'}: no such file" in fails(capsys, *compare, tmp_path / "a", tmp_path / "b")
    assert f"sweeps.1: {tmp_path / 'a'}: " in fails(capsys, *compare[:-1], "--force=no", tmp_path / "a", tmp_path / "b")
    assert "Invalid value for '--force': 'maybe' is not a valid boolean" in fails(
        capsys, *compare[:-1], "--force=maybe", "a", "b"
    )


@pytest.mark.parametrize(
    ("words", "only_new"),
    [([], True), (["--only-new"], True), (["--no-only-new"], False), (["--only-new=false"], False)],
)
def test_a_flag_that_is_set_unless_told_otherwise(words, only_new):
    version = build().commands["data"].commands["version"]
    context = version.make_context("version", ["--data", "d", "--model", "m", "--out", "o", *words])
    assert context.params["only_new"] is only_new and context.params["force"] is True


def test_who_stops_what_starts_over_is_promised_nothing(capsys, tmp_path, monkeypatch):
    def interrupted(config):
        raise KeyboardInterrupt

    monkeypatch.setattr("posgap.stages.merge.merge", interrupted)
    code, shown = run(capsys, "merge", tmp_path, "--out", tmp_path / "out")
    assert code == 130 and shown.strip() == "posgap: error: stopped"
