"""R1 where items are chosen: the model learns its own opinion, averaged over the orders."""

import pytest
import tiny_judge
import torch

from posgap.data.synthetic import animal_examples
from posgap.demo.tiny_training import Updates
from posgap.distillation.averaging import letters_of
from posgap.distillation.config import DistillConfig, TeacherConfig
from posgap.foundation.errors import PosgapError
from posgap.foundation.files import read_jsonl, write_jsonl
from posgap.mitigations.in_force import load_model
from posgap.models.loading import save_model
from posgap.stages.distill import distill
from posgap.stages.teacher import advantageous_placements
from posgap.tasks.content import content
from posgap.tasks.prompts import PromptBuilder
from posgap.tasks.reading import write_examples
from posgap.tasks.registry import TASKS
from posgap.tasks.responses import Response

TASK, N = TASKS["options"], 4
EXAMPLES = list(animal_examples(6, N, seed=0))
KIND = tiny_judge.OPTIONS


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model that has learnt nothing yet but to prefer a letter."""
    folder, model = tmp_path_factory.mktemp("models") / "options", tiny_judge.untrained(KIND, 0)
    update, batches = Updates(model), tiny_judge.Batches(KIND, 0)
    for _ in range(12):
        update(*batches(N, bent=True), 1.0)
    save_model(model, tiny_judge.tokenizer(KIND), folder)
    return folder


@pytest.fixture(scope="module")
def build():
    return PromptBuilder(TASK, tiny_judge.tokenizer(KIND), 512, 4)


def response(example, placement, said, build) -> Response:
    return Response(
        id=example.id, content=content(example), placement=list(placement.positions), n_docs=N, response=said,
        token_ids=build.response_ids(example, placement, said), correct=True,
    )  # fmt: skip


def letter_probabilities(folder, build) -> torch.Tensor:
    """[example, placement, letter]: the probabilities of the letters, among all tokens."""
    model, letters = load_model(str(folder), "float32"), build.tokenizer.convert_tokens_to_ids([" A", " B", " C", " D"])
    with torch.no_grad():
        logits = [
            [model(input_ids=torch.tensor([build(e, p)])).logits[0, -1] for p in TASK.placements(N)] for e in EXAMPLES
        ]
    return torch.stack([torch.stack(of_example) for of_example in logits]).softmax(-1)[..., letters]


def averaged(own: torch.Tensor) -> torch.Tensor:
    """The same with the letters' mass given to the items by their mean share, item by item and order by order."""
    target = torch.empty_like(own)
    mass = own.sum(-1)
    for e in range(len(own)):
        shares = [[float(own[e, p, (p + item) % N] / mass[e, p]) for p in range(N)] for item in range(N)]
        for p in range(N):
            for item in range(N):
                target[e, p, (p + item) % N] = mass[e, p] * sum(shares[item]) / N
    return target


def trained(tmp_path, model, rows, **options):
    write_examples(tmp_path / "examples.jsonl", EXAMPLES)
    write_jsonl(tmp_path / "responses.jsonl", [row.model_dump() for row in rows])
    config = DistillConfig(
        task="options", model=str(model), examples=tmp_path / "examples.jsonl", out=tmp_path / "out",
        responses=tmp_path / "responses.jsonl", batch_size=24, learning_rate=1e-3, **options,
    )  # fmt: skip
    out = distill(config)
    return out, [row for _, row in read_jsonl(out / "history.jsonl")]


def test_the_target_is_the_opinion_of_all_orders_and_the_student_learns_it(tmp_path, model, build):
    said = [response(e, p, letter, build) for e, letter in zip(EXAMPLES, "ABCDAB") for p in TASK.placements(N)]
    out, history = trained(tmp_path, model, said, epochs=16)
    own = letter_probabilities(model, build)
    target = averaged(own)
    divergence = (target * (target / own).log()).sum(-1)
    # The end token, which is the model's own already, halves the mean over a response's tokens.
    assert history[0]["order_kl"] == pytest.approx(float(divergence.mean()) / 2, rel=1e-3)
    after = letter_probabilities(out, build)
    left = (target * (target / after).log()).sum(-1).mean()
    assert history[-1]["order_kl"] < history[0]["order_kl"] / 4 and left < divergence.mean() / 2


def test_what_has_no_letter_in_every_order_is_left_out(tmp_path, model, build, caplog):
    said = [response(e, p, "A", build) for e in EXAMPLES for p in TASK.placements(N)]
    rows = [*said[:-1], response(EXAMPLES[-1], TASK.placements(N)[-1], "sleeps", build)]
    with caplog.at_level("INFO"):
        _, history = trained(tmp_path, model, rows, epochs=1)
    assert "left out 4 responses to examples without a letter in every order" in caplog.text and len(history) == 1
    with pytest.raises(PosgapError, match="no example has a response with a letter in each of its 4 orders"):
        trained(tmp_path / "first", model, [row for row in said if row.placement == [1]])


def test_gold_answers_are_letters_too_and_other_orders_are_not_asked_for(tmp_path, model, build):
    said = [response(e, p, "A", build) for e in EXAMPLES for p in TASK.placements(N)]
    out, history = trained(tmp_path, model, said, epochs=8, method="sft")
    gold, before = (
        torch.stack([letter_probabilities(folder, build)[:, p, p] for p in range(N)]) for folder in (out, model)
    )
    assert history[-1]["cross_entropy"] < history[0]["cross_entropy"] and gold.min() > 2 * before.min()
    with pytest.raises(PosgapError, match="distractors: options has its items in every order anyway"):
        trained(tmp_path / "again", model, said, distractors="reshuffled")


@pytest.mark.parametrize(("said", "token"), [("A", 0), ("That old bear waits.", None), ("A, B", None), ("The A.", 1)])
def test_a_responses_letter_is_found_among_its_tokens(build, said, token):
    found = letters_of(response(EXAMPLES[0], TASK.placements(N)[0], said, build), build)
    assert (found and found.token) == token
    if found:
        assert build.tokenizer.convert_ids_to_tokens(list(found.ids)) == [" A", " B", " C", " D"]


def test_the_teacher_answers_in_every_order_whatever_the_sweep_says(tmp_path):
    config = TeacherConfig(task="options", n_docs=4, model="m", examples=tmp_path / "e", out=tmp_path / "o")
    assert advantageous_placements(config, 1) == TASK.placements(4)
