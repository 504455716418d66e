"""lm-evaluation-harness asks, scores and counts as `posgap sweep` does, response by response."""

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from endpoint import Endpoint, served
from examples import kv_example, qa_example
from llamas import CHAT, random_model
from places import ROOT

import posgap
from posgap.demo import tiny_model
from posgap.foundation.errors import PosgapError
from posgap.generation.endings import before_stop
from posgap.models.loading import save_model
from posgap.peers.questions import Questions
from posgap.tasks.reading import write_examples
from posgap.tasks.registry import TASKS

lm_eval = pytest.importorskip("lm_eval", reason="lm-evaluation-harness is not installed: pip install 'posgap[harness]'")

import datasets  # noqa: E402
from lm_eval.models.huggingface import HFLM  # noqa: E402
from lm_eval.tasks import TaskManager  # noqa: E402
from transformers import LlamaConfig, Qwen2Config  # noqa: E402

TASK_FOLDER = ROOT / "src" / "posgap" / "peers"


@pytest.fixture
def kv_file(tmp_path) -> Path:
    write_examples(tmp_path / "kv.jsonl", [kv_example(number) for number in range(12)])
    return tmp_path / "kv.jsonl"


def by_harness(folder: Path, task: str, chat: bool = False, limit: int | None = None, **metadata):
    tasks = TaskManager(include_path=str(TASK_FOLDER), include_defaults=False, metadata=metadata)
    model = HFLM(str(folder), dtype="float32", batch_size=5, device="cpu")
    # `simple_evaluate` would look for a second or two what the machine is.
    return lm_eval.evaluate(model, tasks.load([task]), limit=limit, apply_chat_template=chat)


@pytest.mark.parametrize(("family", "chat"), [(LlamaConfig, False), (Qwen2Config, False), (Qwen2Config, True)])
def test_the_harness_answers_and_counts_as_a_sweep(family, chat, tmp_path, kv_file):
    tokenizer = tiny_model.tokenizer()
    if chat:
        tokenizer.chat_template = CHAT
    save_model(random_model(family), tokenizer, tmp_path / "model")
    options = {"n_docs": 6, "max_new_tokens": 5, "metric": "contains_any"}
    swept = posgap.sweep(tmp_path / "model", kv_file, max_unanswered=100, **options)
    theirs = by_harness(tmp_path / "model", "posgap_kv", chat, examples=str(kv_file), **options)
    samples = theirs["samples"]["posgap_kv"]
    assert len({row["response"] for row in swept.predictions}) > 5 and 0 < swept.figures.mean < 100
    # The harness shows the whole response, of which a base model's first line is scored.
    stop = swept.figures.asked.stop
    assert stop == ([] if chat else ["\n"])
    answered = [(*sample["accuracy"][:2], before_stop(sample["filtered_resps"][0], stop)) for sample in samples]
    assert answered == [(row["id"], str(row["placement"][0]), row["response"]) for row in swept.predictions]
    scores = np.nan_to_num([sample["accuracy"][2] for sample in samples])
    assert scores.tolist() == [row["correct"] for row in swept.predictions]
    figures = {name.removesuffix(",none"): value for name, value in theirs["results"]["posgap_kv"].items()}
    assert swept.gap.value > 0
    assert figures["unanswered"] == swept.figures.outcomes.n_unanswered / 72
    assert [100 * figures[name] for name in ("gap", "gap_low", "gap_high")] == pytest.approx(list(swept.gap))
    assert [100 * figures[f"at_{position}"] for position in range(1, 7)] == pytest.approx(swept.figures.accuracy)
    assert 100 * figures["accuracy"] == pytest.approx(swept.figures.mean)
    ends = swept.figures.accuracy[:2], swept.figures.accuracy[2:4], swept.figures.accuracy[4:]
    thirds = [100 * figures[name] for name in ("beginning", "middle", "end")]
    assert thirds == pytest.approx([sum(third) / 2 for third in ends])
    better = theirs["higher_is_better"]["posgap_kv"]
    assert not better["gap"] and better["accuracy"] and better["at_3"]


def test_a_limit_of_the_harness_leaves_out_the_example_that_it_cuts(tmp_path, kv_file, caplog):
    save_model(random_model(LlamaConfig), tiny_model.tokenizer(), tmp_path / "model")
    options = {"n_docs": 6, "max_new_tokens": 5, "metric": "contains_any", "positions": ["1", "3", "6"]}
    theirs = by_harness(tmp_path / "model", "posgap_kv", limit=11, examples=str(kv_file), **options)
    swept = posgap.sweep(tmp_path / "model", kv_file, limit=3, max_unanswered=100, **options)
    figures = theirs["results"]["posgap_kv"]
    assert [100 * figures[f"at_{position},none"] for position in (1, 3, 6)] == pytest.approx(swept.figures.accuracy)
    with caplog.at_level("WARNING", "posgap.peers.harness"):
        none = by_harness(tmp_path / "model", "posgap_kv", limit=2, examples=str(kv_file), **options)
    assert math.isnan(none["results"]["posgap_kv"]["gap,none"])
    assert "no example was asked for at all of its 3 placements; give --limit a multiple" in caplog.text


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"examples": "missing.jsonl"}, "missing.jsonl: no such file"),
        ({"examples": ["a"]}, "examples: expected a file, a folder, or how many are to be made"),
        ({"examples": "0"}, "greater than or equal to 1"),
        ({"n_docs": 0}, "posgap_kv: field `n_docs`"),
        ({"n_dcos": 4}, "posgap_kv: there is no option n_dcos; choose among examples, n_docs"),
        ({"positions": [99]}, "position 99: must lie in 1..20"),
    ],
)
def test_bad_options_get_one_line(options, complaint):
    with pytest.raises(PosgapError, match=complaint):
        Questions("posgap_kv", "kv", **options)


def test_thoughts_and_what_follows_a_stop_string_count_for_nothing():
    questions = Questions("posgap_kv", "kv", 1, n_docs=2, stop=["\n"])
    question, scoring = questions.all[0], questions.scoring
    value = question.example.answers[0]
    prompt = questions.prompt_text(question)
    assert scoring.response(prompt, f"<think>no</think>\n {value}\nmore") == value
    assert (
        scoring.score(value, question.example.answers) == 1 and scoring.score("nothing", question.example.answers) == 0
    )
    assert math.isnan(scoring.score(scoring.response(prompt, "<think>for ever"), question.example.answers))


def test_every_task_of_posgap_has_its_file_which_the_harness_lists():
    tasks = TaskManager(include_path=str(TASK_FOLDER), include_defaults=False)
    assert set(tasks.all_subtasks) == {f"posgap_{name}" for name in TASKS.names()}
    assert all(entry.yaml_path.stem == name for name, entry in tasks.task_index.items())


def test_the_folder_is_printed_for_the_command_line():
    printed = subprocess.run([sys.executable, "-m", "posgap.peers"], capture_output=True, text=True, check=True)
    assert Path(printed.stdout.strip()) == Path(posgap.__file__).parent / "peers"


def test_a_dataset_is_read_as_examples_and_a_sweep_is_one(tmp_path, kv_file):
    examples = [kv_example(number) for number in range(3)]
    rows = datasets.Dataset.from_list([example.model_dump(mode="json") for example in examples])
    assert posgap.examples(rows) == examples
    questions = [qa_example(number) for number in range(2)]
    rows.save_to_disk(tmp_path / "rows")
    assert posgap.examples(datasets.load_from_disk(tmp_path / "rows"), limit=2) == examples[:2]
    documents = datasets.Dataset.from_list([example.model_dump() for example in questions])
    assert posgap.examples(documents) == questions
    # One table of both kinds has empty cells.
    assert posgap.examples(datasets.concatenate_datasets([documents, rows])) == questions + examples
    with served(Endpoint()) as endpoint:
        swept = posgap.sweep(endpoint.url, rows, name="served", n_docs=4, positions=["1", "3"])
    there = datasets.Dataset.from_pandas(swept.frame)
    assert there.to_pandas().equals(swept.frame) and len(there) == 6
