"""Training where items are chosen: each response is learnt in its own order."""

import pytest
import tiny_judge
import torch

from posgap.data.reading import write_examples
from posgap.data.synthetic import animal_examples
from posgap.demo.tiny_training import Updates
from posgap.foundation.errors import BadOption
from posgap.foundation.files import read_jsonl, write_jsonl
from posgap.mitigations.in_force import load_model
from posgap.models.loading import save_model
from posgap.options.distill import DistillConfig
from posgap.options.teacher import TeacherConfig
from posgap.tasks.content import content_key
from posgap.tasks.prompts import PromptBuilder
from posgap.tasks.registry import TASKS
from posgap.verbs.distill import distill
from posgap.verbs.teacher import advantageous_placements

TASK, N = TASKS["options"], 4
EXAMPLES = list(animal_examples(6, N, seed=0))
KIND = tiny_judge.OPTIONS


@pytest.fixture
def build():
    return PromptBuilder(TASK, tiny_judge.tokenizer(KIND), 512, 4)


@pytest.fixture
def config(tmp_path, build):
    """A model that has learnt nothing yet but to prefer a letter, and its responses in every order."""
    model = tiny_judge.untrained(KIND, 0)
    update, batches = Updates(model), tiny_judge.Batches(KIND, 0)
    for _ in range(12):
        update(*batches(N, bent=True), 1.0)
    save_model(model, tiny_judge.tokenizer(KIND), tmp_path / "model")
    responses = [
        {
            "id": example.id,
            "content": content_key(example),
            "placement": list(placement.positions),
            "n_docs": N,
            "response": "A",
            "token_ids": build.response_ids(example, placement, "A"),
            "correct": True,
        }
        for example in EXAMPLES
        for placement in TASK.choose_placements(N)
    ]
    write_examples(tmp_path / "examples.jsonl", EXAMPLES)
    write_jsonl(tmp_path / "responses.jsonl", responses)
    return DistillConfig(
        task="options", model=str(tmp_path / "model"), examples=tmp_path / "examples.jsonl", out=tmp_path / "out",
        responses=tmp_path / "responses.jsonl", batch_size=24, learning_rate=1e-3, epochs=8, method="sft",
    )  # fmt: skip


def right_letters(folder, build) -> torch.Tensor:
    """[placement, example]: the probability of the right letter."""
    model, letters = load_model(str(folder), "float32"), build.tokenizer.convert_tokens_to_ids([" A", " B", " C", " D"])
    with torch.no_grad():
        logits = [
            [model(input_ids=torch.tensor([build(e, p)])).logits[0, -1] for e in EXAMPLES]
            for p in TASK.choose_placements(N)
        ]
    shares = torch.stack([torch.stack(at) for at in logits]).softmax(-1)
    return torch.stack([shares[place, :, letters[place]] for place in range(N)])


@pytest.mark.full
def test_gold_answers_are_letters_too_each_in_its_own_order(config, build):
    out = distill(config)
    history = [row for _, row in read_jsonl(out / "history.jsonl")]
    assert len(history) == 8  # all 24 responses of an epoch are one step, and no other orders are drawn
    before, after = right_letters(config.model, build), right_letters(out, build)
    assert history[-1]["cross_entropy"] < history[0]["cross_entropy"] and after.min() > 2 * before.min()


def test_r1_which_makes_answers_alike_everywhere_is_refused(config):
    with pytest.raises(BadOption, match="^method: r1 .* sft or seqkd"):
        distill(config.model_copy(update={"method": "r1"}))


def test_the_teacher_answers_in_every_order_whatever_the_sweep_says(tmp_path):
    config = TeacherConfig(task="options", n_docs=4, model="m", examples=tmp_path / "e", out=tmp_path / "o")
    assert advantageous_placements(config, 1) == TASK.choose_placements(4)
