"""Questions about documents of one's own: the parts, what stands where, and what is wrong with a table."""

import random

import pytest
from examples import prompt_text
from refusals import refuses

from posgap.data.documents import PARTS, read_documents, split_around
from posgap.data.reading import read_examples
from posgap.foundation.errors import Malformed
from posgap.foundation.files import write_jsonl
from posgap.options.data_import import ImportConfig
from posgap.tasks.placements import Placement
from posgap.tasks.registry import TASKS
from posgap.verbs.data_import import data_import

TASK = TASKS["document"]


def written(paragraphs: int, seed: int = 0) -> str:
    """A Markdown text whose sentences all differ; paragraph 7 of it says where the key lies."""
    rng = random.Random(seed)
    texts = []
    for i in range(paragraphs):
        sentences = [f"Item {i}.{j} weighs {rng.randint(10**4, 10**5)} grams." for j in range(rng.randint(1, 9))]
        texts.append(f"## Part {i}\n\n{' '.join(sentences)}")
    texts[7] += " The key lies\nin the blue drawer."
    return "\n\n".join(texts)


QUOTE = "The key lies in the blue drawer."
ROW = {"question": "Where is the key?", "answer": "blue drawer", "file": "house.md", "quote": QUOTE}


@pytest.fixture
def table(tmp_path):
    """What writes a table of one row beside the file that it names, and returns its path."""

    def write(**changes):
        (tmp_path / "house.md").write_text(written(60), encoding="utf-8")
        write_jsonl(tmp_path / "table.jsonl", [ROW | changes])
        return tmp_path / "table.jsonl"

    return write


@pytest.mark.parametrize("paragraphs", [8, 20, 60, 400])
def test_parts_keep_the_text_s_order_and_length_and_the_quote_is_whole_in_one(paragraphs):
    for seed in range(5):
        text = written(paragraphs, seed)
        parts, at = split_around(text, QUOTE)
        assert " ".join(parts).split() == text.split()
        assert [QUOTE in " ".join(part.split()) for part in parts] == [i == at for i in range(len(parts))]
        if paragraphs > 20:
            assert len(parts) == PARTS and max(map(len, parts)) < 2 * len(text) / PARTS + len(QUOTE)


def test_the_text_is_unchanged_at_its_own_position_and_rotated_elsewhere(table, tmp_path):
    out = data_import(ImportConfig(format="document", input=table(), out=tmp_path / "e.jsonl"))
    (example,) = read_examples(out)
    text = written(60)
    _, at = split_around(text, QUOTE)
    orders = {p: prompt_text(TASK, example, Placement((p,), PARTS)).split("\n\n", 1)[1] for p in range(1, PARTS + 1)}
    shown = {p: order.rpartition("\n\nQuestion:")[0].split() for p, order in orders.items()}
    assert shown[at + 1] == text.split() and example.answers == ["blue drawer"]
    assert len({tuple(words) for words in shown.values()}) == PARTS
    for words in shown.values():
        turn = next(i for i in range(len(words)) if words[i:] + words[:i] == text.split())
        assert 0 <= turn < len(words)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"quote": "The key is gone."}, ["`quote`", "'The key is gone.'"]),
        ({"quote": "weighs"}, ["`quote`", "'weighs'", "265 times"]),
        ({"quote": " "}, ["`quote`"]),
        ({"file": "../secret.txt"}, ["`file`: ../secret.txt "]),
        ({"file": "/etc/hostname"}, ["`file`: /etc/hostname "]),
        ({"file": "none.md"}, ["`file`: ", "none.md: "]),
        ({"file": "table.bin"}, ["`file`: ", "table.bin: ", "UTF-8"]),
        ({"file": "short.md"}, ["`file`"]),
        ({"answer": None}, ["`answer`"]),
    ],
)
def test_what_is_wrong_with_a_row_is_named(table, tmp_path, changes, named):
    (tmp_path / "table.bin").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "short.md").write_text(QUOTE)
    with refuses(Malformed, *named, at="table.jsonl:1"):
        list(read_documents(table(**changes)))


def test_a_short_answer_is_right_and_a_copy_of_the_text_is_not(table):
    ((_, example),) = read_documents(table())
    for position in (1, 10, 20):
        placement = Placement((position,), PARTS)
        right = TASK.right_answers(example, placement)
        for response in ("blue drawer", "It lies in the blue drawer.\nQuestion: And the lamp?"):
            assert TASK.score(response, right) == 1
        copy = " ".join(prompt_text(TASK, example, placement).split("\n\n", 1)[1].split())
        for response in (copy, copy[: 60 * 6], example.gold[0].text.replace("\n", " "), "", "the red drawer"):
            assert TASK.score(response, right) == 0
