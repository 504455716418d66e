"""Multiple-choice questions and judged answers, in the layouts of the public files."""

import gzip

import pytest
from refusals import refuses

import posgap
from posgap.data.choice_files import LAYOUTS
from posgap.data.reading import read_examples
from posgap.foundation.errors import Malformed, NotFound, Unreadable
from posgap.foundation.files import read_rows, write_jsonl
from posgap.options.data_import import ImportConfig
from posgap.verbs.data_import import data_import

MMLU = {
    "question": "Capital of France?",
    "subject": "geography",
    "choices": ["Rome", "Paris", "Bonn", "Oslo"],
    "answer": 1,
}
HENDRYCKS = 'Capital of France?,Rome,Paris,Bonn,Oslo,B\n"Two, and two?",4,5,"6, or so",7,A\n'


read_mmlu, read_mt_bench, read_reward_bench, read_comparisons = (layout.read_file for layout in LAYOUTS.values())


def written(path, rows: list):
    write_jsonl(path, rows)
    return path


def texts(example) -> tuple[str, list[str]]:
    (gold,) = example.gold
    assert example.answers == [gold.text]
    return gold.text, [other.text for other in example.distractors]


def test_mmlu_of_the_hub_in_json_parquet_and_as_a_folder_of_datasets(tmp_path):
    import pyarrow
    from pyarrow import parquet

    rows = [MMLU, MMLU | {"choices": ["yes", "no"], "answer": 0}]
    lines = list(read_mmlu(written(tmp_path / "test.jsonl", rows)))
    assert [(number, texts(example)) for number, example in lines] == [
        (1, ("Paris", ["Rome", "Bonn", "Oslo"])),
        (2, ("yes", ["no"])),
    ]
    (tmp_path / "parts").mkdir()
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "parts" / "test-00000-of-00001.parquet")
    assert list(read_mmlu(tmp_path / "parts" / "test-00000-of-00001.parquet")) == lines
    assert list(read_mmlu(tmp_path / "parts")) == lines
    with refuses(NotFound, at=tmp_path):
        list(read_mmlu(tmp_path))
    (tmp_path / "torn.parquet").write_bytes(b"PAR1 and then nothing")
    with refuses(Unreadable, at="torn.parquet"):
        list(read_mmlu(tmp_path / "torn.parquet"))


@pytest.mark.parametrize("header", ["", "question,A,B,C,D,answer\n"])
def test_mmlu_of_its_authors_with_and_without_a_header(tmp_path, header):
    (tmp_path / "abstract_algebra_test.csv").write_text(header + HENDRYCKS)
    with gzip.open(tmp_path / "test.csv.gz", "wt", encoding="utf-8-sig") as file:
        file.write(header + HENDRYCKS)
    for name in ("abstract_algebra_test.csv", "test.csv.gz"):
        read = [texts(example) for _, example in read_mmlu(tmp_path / name)]
        assert read == [("Paris", ["Rome", "Bonn", "Oslo"]), ("4", ["5", "6, or so", "7"])]


@pytest.mark.parametrize(
    ("row", "named"),
    [
        (MMLU | {"answer": 4}, "`answer`: 4 "),
        (MMLU | {"answer": "E"}, "`answer`: 'E'"),
        (MMLU | {"answer": ""}, "`answer`: ''"),
        (MMLU | {"choices": ["alone"]}, "`choices`"),
        ({"question": "?"}, "`choices`"),
        ([1], "[1]"),
    ],
)
def test_a_broken_line_of_mmlu_is_named(tmp_path, row, named):
    with refuses(Malformed, named, at=":2"):
        list(read_mmlu(written(tmp_path / "m.jsonl", [MMLU, row])))


@pytest.mark.parametrize("text", ["a,b,c\n", "a,b,c,d,e,f,g\n", '"never closed\n'])
def test_a_broken_csv_is_named(tmp_path, text):
    (tmp_path / "m.csv").write_text(HENDRYCKS + text)
    with refuses(Malformed, at="m.csv:3"):
        list(read_mmlu(tmp_path / "m.csv"))
    (tmp_path / "m.csv").write_bytes(HENDRYCKS.encode() + b"\x81,b,c,d,e,A\n")
    with refuses(Malformed, at="m.csv"):
        list(read_rows(tmp_path / "m.csv", "abcdef"))


def judgment(winner: str, turn: int = 1, judge: str = "author_1", swapped: bool = False) -> dict:
    def conversation(name: str) -> list[dict]:
        roles = ("user", "assistant") * 2
        said = ("Write a haiku.", f"{name} writes.", "And another.", f"{name} writes more.")
        return [{"content": text, "role": role} for role, text in zip(roles, said)]

    a, b = ("alpaca-13b", "gpt-4")[:: -1 if swapped else 1]
    return {
        "question_id": 81, "model_a": a, "model_b": b, "winner": winner, "judge": judge, "turn": turn,
        "conversation_a": conversation(a), "conversation_b": conversation(b),
    }  # fmt: skip


def test_mt_bench_takes_what_most_judges_prefer_whichever_answer_they_read_first(tmp_path, caplog):
    rows = [
        judgment("model_b"), judgment("model_a", judge="author_2", swapped=True), judgment("tie", judge="expert_3"),
        judgment("model_a", turn=2), judgment("model_b", turn=2, judge="author_2"),
        {**judgment("tie (inconsistent)"), "question_id": 82},
        {**judgment("model_a", turn=2), "question_id": 83},
    ]  # fmt: skip
    file = written(tmp_path / "human.jsonl", rows)
    read = dict(read_mt_bench(file))
    assert [number for number, example in read.items() if example is None] == [4, 6]
    assert read[1].question == "Write a haiku." and texts(read[1]) == ("gpt-4 writes.", ["alpaca-13b writes."])
    assert [document.title for document in (*read[1].gold, *read[1].distractors)] == ["gpt-4", "alpaca-13b"]
    assert texts(read[7])[0] == "alpaca-13b writes.\n\nQuestion: And another.\n\nAnswer: alpaca-13b writes more."
    with caplog.at_level("INFO"):
        data_import(ImportConfig(input=file, out=tmp_path / "e.jsonl", format="mt-bench"))
    assert "left out 2 without a single best answer" in caplog.text
    assert len(read_examples(tmp_path / "e.jsonl")) == 2


def test_reward_bench_in_both_layouts(tmp_path):
    old = {
        "prompt": "Name a colour.", "chosen": "Red.", "chosen_model": "GPT4", "rejected": "Four.",
        "rejected_model": "llama", "subset": "alpacaeval-easy", "id": 0,
    }  # fmt: skip
    new = {
        "id": "1-a", "prompt": "Name a colour.", "chosen": ["Red."], "rejected": ["Four.", "No.", "Up."],
        "num_correct": 1, "num_incorrect": 3, "total_completions": 4, "models": ["m1", "m2", "m3", "m4"],
        "subset": "Factuality", "additional_metadata": None,
    }  # fmt: skip
    tie = new | {"chosen": ["Red.", "Blue."], "subset": "Ties"}
    same = old | {"rejected": "Red. "}
    (_, first), (_, second), *others = read_reward_bench(written(tmp_path / "r.jsonl", [old, new, tie, same]))
    assert texts(first) == ("Red.", ["Four."]) and texts(second) == ("Red.", ["Four.", "No.", "Up."])
    assert [d.title for d in (*first.gold, *first.distractors)] == ["GPT4", "llama"]
    assert [d.title for d in (*second.gold, *second.distractors)] == ["m1", "m2", "m3", "m4"]
    assert others == [(3, None), (4, None)]
    with refuses(Malformed, "`rejected`", at=":1"):
        list(read_reward_bench(written(tmp_path / "b.jsonl", [{"prompt": "?", "chosen": "a"}])))


def test_comparisons_of_ones_own_as_csv_and_as_lines(tmp_path):
    (tmp_path / "c.csv").write_text(
        "question,response_a,response_b,label\nQ1?,one,two,B\nQ2?,one,two,tie\nQ3?,one,two,model_a\nQ4?,x,y,response_b\n"
    )
    read = [example and texts(example) for _, example in read_comparisons(tmp_path / "c.csv")]
    assert read == [("two", ["one"]), None, ("one", ["two"]), ("y", ["x"])]
    rows = [{"question": "Q?", "answers": ["a", "b", "c"], "label": "c", "id": "mine"}]
    ((_, example),) = read_comparisons(written(tmp_path / "c.jsonl", rows))
    assert texts(example) == ("c", ["a", "b"]) and example.id == "mine"
    for label in ("d", "", "0", "both"):
        with refuses(Malformed, "`label`", repr(label), at=":1"):
            list(read_comparisons(written(tmp_path / "b.jsonl", [rows[0] | {"label": label}])))


@pytest.mark.parametrize(
    ("row", "right"),
    [
        (MMLU, "Paris"),
        (judgment("model_a"), "alpaca-13b writes."),
        ({"prompt": "?", "chosen": "a", "rejected": "b"}, "a"),
        ({"question": "?", "response_a": "a", "response_b": "b", "label": "B"}, "b"),
    ],
)
def test_every_verb_reads_these_files_without_an_import(tmp_path, row, right):
    (example,) = read_examples(written(tmp_path / "as-they-are.jsonl", [row]))
    assert example.answers == [right]
    assert posgap.examples([row])[0].answers == [right]


def test_a_table_of_comparisons_is_no_retrieval_log_and_ties_are_counted(tmp_path, caplog):
    (tmp_path / "c.csv").write_text("question,response_a,response_b,label\nQ1?,one,two,B\nQ2?,one,two,tie\n")
    with caplog.at_level("INFO"):
        (example,) = read_examples(tmp_path / "c.csv")
    assert example.answers == ["two"] and "left out 1 without a single best answer" in caplog.text
