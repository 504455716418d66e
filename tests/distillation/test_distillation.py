"""Teacher states, losses from models, and the training loop."""

import copy
import math
import os
import signal
from collections import Counter
from itertools import pairwise

import pytest
import torch
from accelerate import Accelerator
from safetensors.torch import load_file
from transformers import Gemma2Config, Gemma2ForCausalLM, LlamaConfig, LlamaForCausalLM, get_scheduler

from posgap.distillation import engine, processes, rounding_floor
from posgap.distillation import head as head_module
from posgap.distillation.batches import Batch, Draw, TrainingPrompt, plan_steps, teacher_prompts
from posgap.distillation.checkpoints import Checkpoints
from posgap.distillation.engine import NotFinite, Schedule, TrainStep, train
from posgap.distillation.gradients import Gradient
from posgap.distillation.lora import add_adapters, merge_adapters
from posgap.distillation.losses import alignment_weights, per_row, token_kl
from posgap.distillation.objectives import R1, CrossEntropy
from posgap.distillation.optimizers import adamw
from posgap.distillation.student import Student
from posgap.distillation.teacher_states import Teacher, TeacherStates, frozen_head
from posgap.foundation.errors import BadModel, NoRoom, PosgapError, TerminationSignal, Unreadable
from posgap.mitigations.in_force import scale_model
from posgap.models.checkpointing import checkpoint_activations
from posgap.models.memory import DeviceMemory
from posgap.tasks.placements import Placement

TRIVIAL = [(2,), (3,), (4,), (5,)]
AT_FIRST = [(1,)] * 30  # where the responses of as many pairs were sampled
OURS = {"model": "m", "prompts": "p", "arithmetic": "float32"}


# For its loss alone: the weights of rows are no matter there.
KL = R1(AT_FIRST, "none", anchoring=1.0)


def teacher_of(model, collate, folder, mixed=False) -> Teacher:
    teacher = Teacher(TeacherStates(folder, OURS), frozen_head(model, False), collate)
    with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
        teacher.read_missing(Student(model, KL), torch.device("cpu"), 150)
    return teacher


@pytest.fixture
def teacher(model, collate, tmp_path):
    return teacher_of(model, collate, tmp_path / "teacher")


def test_padding_changes_no_loss(model, collate, teacher):
    student = Student(model, KL, teacher)
    rows = [TrainingPrompt(0, (2,)), TrainingPrompt(1, (4,)), TrainingPrompt(2, (3,))]
    together = student(collate(rows))
    alone = torch.cat([student(collate([row])) for row in rows])
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-7)


# The teacher


def live_losses(teacher_model, student_model, collate, row) -> torch.Tensor:
    """The KL of one row from two live models over whole prompts."""
    (at_best,) = [r for r in teacher_prompts(collate.pairs) if r.pair == row.pair]
    logits = []
    for model, read in ((teacher_model, at_best), (student_model, row)):
        prompt, response = collate.token_ids(read)
        with torch.no_grad():
            logits.append(model(torch.tensor([prompt + response])).logits[0, len(prompt) - 1 : -1])
    return token_kl(*logits).mean()


def test_losses_are_those_of_a_live_teacher(model, collate, tmp_path):
    """To 1e-5 in float32, from states on disk."""
    model.float()
    torch.manual_seed(1)
    student = type(model)(model.config)
    teacher_of(model, collate, tmp_path / "t")
    teacher = Teacher(TeacherStates(tmp_path / "t", OURS), frozen_head(model, False), collate)
    rows = [TrainingPrompt(0, (1,)), TrainingPrompt(1, (4,)), TrainingPrompt(2, (2,)), TrainingPrompt(3, (5,))]
    losses = Student(student, KL, teacher)(collate(rows))
    expected = torch.stack([live_losses(model, student, collate, row) for row in rows])
    torch.testing.assert_close(losses, expected, rtol=0, atol=1e-5)
    assert expected.min() > 1e-3


def test_the_first_response_token_is_aligned(model, collate, teacher):
    """A student that differs in its first response token alone has a loss; off by one, it has none."""
    batch = collate([TrainingPrompt(0, (1,))])
    hidden = teacher.states_of(batch)
    logits = teacher.head(hidden).clone()
    assert token_kl(teacher.head(hidden), logits).abs().max() < 1e-6
    logits[0, batch.targets[0]] += 3.0
    assert token_kl(teacher.head(hidden), logits)[0] > 0.01
    ids = collate.builder(collate.pairs[0].example, Placement((1,), 5))
    torch.testing.assert_close(teacher.head(hidden)[0], model(torch.tensor([ids])).logits[0, -1])


SHAPE = {"vocab_size": 42, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "dtype": "bfloat16"}
FAMILIES = {
    "tied, with a factor a layer": lambda: scale_model(
        LlamaForCausalLM(LlamaConfig(**SHAPE, num_attention_heads=4, tie_word_embeddings=True)), [1.0, 1.3, 2.0]
    ),
    "soft caps and windows": lambda: Gemma2ForCausalLM(
        Gemma2Config(**SHAPE, num_attention_heads=4, num_key_value_heads=2, head_dim=16, sliding_window=8)
    ),
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("mixed, most", [(False, 1e-6), (True, 1e-4)])
def test_the_student_begins_as_the_teacher(family, mixed, most, collate, tmp_path):
    """A model stored in bfloat16, in each arithmetic: what is left is how kernels round batches of another shape, and
    nothing in one of the same."""
    torch.manual_seed(0)
    model = FAMILIES[family]().to(torch.bfloat16).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)
    teacher = teacher_of(model, collate, tmp_path / "t", mixed)
    rows = teacher_prompts(collate.pairs)
    batch = collate(rows)
    assert teacher.states_of(batch).dtype == torch.float32  # under autocast too
    student = Student(model, KL, teacher)
    with torch.autocast("cpu", torch.bfloat16, enabled=mixed), torch.no_grad():
        together, alone = student(batch), torch.cat([student(collate([row])) for row in rows])
        elsewhere = student(collate([TrainingPrompt(0, (2,)), TrainingPrompt(1, (4,))]))
    assert together.abs().max() < most and alone.abs().max() < most < elsewhere.mean()
    again = Teacher(TeacherStates(tmp_path / "alone", OURS), teacher.head, collate)
    with torch.autocast("cpu", torch.bfloat16, enabled=mixed), torch.no_grad():
        again.read_missing(student, torch.device("cpu"), 1)
        assert Student(model, KL, again)(collate(rows[:1])).item() == 0


def test_the_teacher_stays_while_the_student_moves(model, collate, teacher):
    batch = collate([TrainingPrompt(0, (1,))])
    before = teacher.head(teacher.states_of(batch))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    torch.testing.assert_close(teacher.head(teacher.states_of(batch)), before)


def test_teacher_states_are_read_once_and_serve_whoever_reads_the_same(model, collate, teacher, tmp_path):
    def read(batch, states_alone):
        raise AssertionError("read again")

    Teacher(TeacherStates(tmp_path / "teacher", OURS), teacher.head, collate).read_missing(
        read, torch.device("cpu"), 150
    )
    shards = list((tmp_path / "teacher").iterdir())
    # T * D numbers an example, beside a header.
    numbers = sum(len(p.response.token_ids) for p in collate.pairs) * model.config.hidden_size
    assert 0 < sum(s.stat().st_size for s in shards) - 8 * numbers < 2000


@pytest.mark.parametrize("what", OURS)
def test_states_of_another_teacher_are_refused(what, collate, teacher, tmp_path):
    with pytest.raises(PosgapError, match=f"^{tmp_path}/teacher/.* {what}; "):
        TeacherStates(tmp_path / "teacher", OURS | {what: "another"})


def test_a_broken_shard_is_refused(collate, teacher, tmp_path):
    (shard,) = (tmp_path / "teacher").iterdir()
    shard.write_bytes(shard.read_bytes()[:100])
    with pytest.raises(Unreadable, match=f"^{shard}: "):
        TeacherStates(tmp_path / "teacher", OURS)


def test_a_model_with_logits_of_its_own_making_is_refused(model, collate, tmp_path):
    forward = model.forward
    model.forward = lambda *a, **k: (out := forward(*a, **k), setattr(out, "logits", out.logits * 0.5 + 1))[0]
    with pytest.raises(BadModel, match="^LlamaForCausalLM: "):
        teacher_of(model, collate, tmp_path / "t")


# The objectives


def test_the_r1_loss_is_its_definition(model, collate, teacher):
    """L = sum alpha_ij L_ij + lambda mean_j L_Anc,j, from live models."""
    torch.manual_seed(1)
    student = type(model)(model.config).double()
    objective = R1(AT_FIRST, "paper", anchoring=0.5)
    rows = objective.draw_prompts([Draw(0, ((2,), (3,))), Draw(1, ((3,), (5,))), Draw(3, ((2,), (4,)))])
    assert [(row.pair, *row.positions) for row in rows] == [
        (0, 1), (0, 2), (0, 3), (1, 1), (1, 3), (1, 5), (3, 1), (3, 2), (3, 4)
    ]  # fmt: skip
    losses = Student(student, objective, teacher)(collate(rows)).detach()
    live = torch.stack([live_losses(model, student, collate, row) for row in rows])
    positions = torch.tensor([row.positions[0] for row in rows])
    trivial = positions != 1
    alpha = alignment_weights(live[trivial], positions[trivial].tolist(), "paper")
    expected = (alpha * live[trivial]).sum() + 0.5 * live[~trivial].mean()
    torch.testing.assert_close((objective.weights(rows, losses) * losses).sum(), expected, rtol=1e-4, atol=1e-6)
    figures = objective.step_figures(rows, losses)
    assert figures["activation_kl"] == pytest.approx(live[trivial].mean().item(), rel=1e-4)
    assert figures["anchoring_kl"] == pytest.approx(live[~trivial].mean().item(), rel=1e-4)


def test_cross_entropy_is_the_mean_over_tokens_of_minus_log_q(model, pairs, collate):
    """As transformers itself computes it from labels."""
    objective = CrossEntropy(pairs)
    rows = objective.draw_prompts([Draw(0, ((2,), (3,))), Draw(1, ((4,), (1,)))])
    losses = Student(model, objective)(collate(rows))
    total, count = 0.0, 0
    for row in rows:
        prompt, response = collate.token_ids(row)
        labels = torch.tensor([[-100] * len(prompt) + response])
        total += model(torch.tensor([prompt + response]), labels=labels).loss.item() * len(response)
        count += len(response)
    assert (objective.weights(rows, losses) * losses).sum().item() == pytest.approx(total / count, rel=1e-5)
    assert objective.step_figures(rows, losses)["cross_entropy"] == pytest.approx(total / count, rel=1e-5)


# The loop


def run(model, collate, objective, teacher=None, epochs=10, micro_batch_tokens=8192, **more):
    prompts = 2 * len(objective.draw_prompts([Draw(0, tuple(TRIVIAL))]))
    steps = plan_steps([TRIVIAL] * len(collate.pairs), objective.draw_prompts, 4, epochs, prompts, seed=0)
    student, schedule = Student(model, objective, teacher), Schedule(1e-3, warmup_steps=2)
    accelerator = Accelerator(cpu=True)
    return train(student, steps, objective, collate, schedule, accelerator, micro_batch_tokens, **more)[1]


@pytest.fixture
def lively(model):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)  # untrained, it hardly tells one prompt from another
    return model


def parameters(model) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def test_training_lowers_the_loss_and_repeats_itself(lively, collate, tmp_path):
    teacher, twin = teacher_of(lively, collate, tmp_path / "t"), copy.deepcopy(lively)
    objective = R1(AT_FIRST, "paper", 1.0)
    first, again = run(lively, collate, objective, teacher), run(twin, collate, objective, teacher)
    assert [f["loss"] for f in first] == [f["loss"] for f in again]
    assert first[-1]["activation_kl"] < first[0]["activation_kl"] / 2
    assert [f["step"] for f in first] == list(range(1, 21))


@pytest.mark.parametrize("method", ["paper", "none", "cross entropy"])
@pytest.mark.parametrize("micro_batch_tokens", [1, 100])
def test_micro_batches_do_not_change_the_numbers(method, micro_batch_tokens, lively, pairs, collate, tmp_path):
    """Weights that depend on the whole batch are those of the whole batch."""
    if method == "cross entropy":
        teacher, objective = None, CrossEntropy(pairs)
    else:
        teacher, objective = teacher_of(lively, collate, tmp_path / "t"), R1(AT_FIRST, method, 1.0)
    whole, parts = copy.deepcopy(lively), copy.deepcopy(lively)
    whole_run = run(whole, collate, objective, teacher, epochs=2)
    many = run(parts, collate, objective, teacher, epochs=2, micro_batch_tokens=micro_batch_tokens)
    for a, b in zip(whole_run, many):
        assert a == pytest.approx(b, rel=1e-5)
    moved = (parameters(whole) - parameters(lively)).norm()
    assert (parameters(whole) - parameters(parts)).norm() < 1e-4 * moved


class Counted(Student):
    """A student that counts the rows that it reads with and without gradients."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.rows: Counter[bool] = Counter()

    def forward(self, batch, states_alone=False):
        self.rows[torch.is_grad_enabled()] += len(batch.rows)
        return super().forward(batch, states_alone)


class Means(R1):
    """R1 whose positions differ so much in their losses that the weights of the first vanish."""

    def token_losses(self, *arguments):
        return 1e6 * super().token_losses(*arguments)


@pytest.mark.parametrize("objective", [R1(AT_FIRST, "paper", 1.0), Means(AT_FIRST, "paper", 0.5)])
@pytest.mark.parametrize("tokens, read_twice", [(8192, 0), (150, 0), (80, 2), (1, 4)])
@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_one_pass_has_the_gradient_of_the_whole_step(objective, tokens, read_twice, device, model, collate, tmp_path):
    """Where rows are read once, position by position, the sum is that of weights which are known beforehand.

    So it is where the host may not look at factors, as those on a GPU."""
    teacher = teacher_of(model, collate, tmp_path / "t")
    torch.manual_seed(1)
    moved = type(model)(model.config).double()
    draws = [Draw(0, ((2,), (3,))), Draw(1, ((3,), (5,))), Draw(3, ((2,), (3,))), Draw(2, ((4,), (3,)))]
    student = Counted(moved, objective, teacher)
    rows = objective.draw_prompts(draws)
    losses = student(collate(rows)).double()
    (objective.weights(rows, losses.detach()) * losses).sum().backward()
    expected = [p.grad.clone() for p in moved.parameters()]
    norm = torch.stack([g.norm() for g in expected]).norm().item()
    moved.zero_grad()
    student.rows.clear()
    gradients = []
    accelerator = Accelerator(cpu=True)
    optimizer = torch.optim.SGD(moved.parameters(), lr=0.0)
    optimizer.register_step_pre_hook(lambda *_: gradients.extend(p.grad.clone() for p in moved.parameters()))
    gradient = Gradient(accelerator, student, accelerator.prepare(optimizer), max_norm=norm / 2)
    gradient.reads_factors = device == "cpu"
    figures = TrainStep(student, gradient, objective, collate, torch.device("cpu"), tokens).run(1, rows)
    assert figures["grad_norm"] == pytest.approx(norm, rel=1e-6)
    difference = torch.stack([(2 * a - b).norm() for a, b in zip(gradients, expected)]).norm()  # it is clipped
    assert difference < 1e-6 * norm
    assert student.rows == Counter({True: len(rows), False: read_twice})


def test_micro_batches_grow_to_what_a_gpu_holds(model, collate, tmp_path, monkeypatch):
    objective, accelerator = R1(AT_FIRST, "paper", 1.0), Accelerator(cpu=True)
    student = Student(model, objective, teacher_of(model, collate, tmp_path / "t"))
    gradient = Gradient(accelerator, student, accelerator.prepare(torch.optim.SGD(model.parameters(), lr=0.0)), 1.0)
    train_step = TrainStep(student, gradient, objective, collate, torch.device("cpu"), 0)
    assert train_step.micro_batch_tokens == engine.START_TOKENS and not train_step.may_grow
    train_step.micro_batch_tokens, train_step.may_grow = 80, True
    monkeypatch.setattr(engine, "device_memory", lambda device: DeviceMemory(total=2000, standing=700, peak=800))
    rows = [TrainingPrompt(pair, positions) for pair in range(4) for positions in [(1,), *TRIVIAL]]
    first = train_step.run(1, rows)
    assert train_step.micro_batch_tokens == 80 and train_step.may_grow  # the first makes what stands later
    assert train_step.run(2, rows) == pytest.approx(first)
    assert 80 < train_step.micro_batch_tokens <= 10 * 80 and not train_step.may_grow
    assert train_step.run(3, rows) == pytest.approx(first)


def test_where_a_gradient_cannot_be_scaled_all_rows_are_weighed_first(lively, collate, tmp_path, monkeypatch):
    """Under DeepSpeed with an optimizer that has no loss scale."""
    objective, teacher = R1(AT_FIRST, "paper", 1.0), teacher_of(lively, collate, tmp_path / "t")
    once, twice = copy.deepcopy(lively), Counted(copy.deepcopy(lively), objective, teacher)
    rows = [TrainingPrompt(pair, positions) for pair in range(4) for positions in [(1,), *TRIVIAL]]
    arguments = objective, collate, Schedule(1e-3), Accelerator(cpu=True), 80
    expected = train(Student(once, objective, teacher), [rows], *arguments)[1]
    monkeypatch.setattr(Gradient, "can_be_scaled", False)
    (figures,) = train(twice, [rows], *arguments)[1]
    assert figures == pytest.approx(expected[0], rel=1e-6)
    assert twice.rows == Counter({True: 20, False: 15})  # the last of 16 is read once
    assert (parameters(once) - parameters(twice.model)).norm() < 1e-4 * (parameters(once) - parameters(lively)).norm()


def test_a_gradient_that_overflows_by_its_factors_is_computed_again(model, collate, tmp_path, monkeypatch, caplog):
    """As under ZeRO-2, which then skips the update: its gradient cannot be multiplied before the last pass."""
    objective, teacher = Means(AT_FIRST, "balanced", 0.5), teacher_of(model, collate, tmp_path / "t")
    torch.manual_seed(1)
    moved = type(model)(model.config).double()
    once, again = copy.deepcopy(moved), Counted(copy.deepcopy(moved), objective, teacher)
    draws = [Draw(0, ((2,), (3,))), Draw(1, ((3,), (5,))), Draw(3, ((2,), (3,))), Draw(2, ((4,), (3,)))]
    steps = [objective.draw_prompts(draws)] * 2
    arguments = objective, collate, Schedule(1e-3), Accelerator(cpu=True), 80
    expected = train(Student(once, objective, teacher), steps, *arguments)[1]
    update = Gradient.update

    def overflows(self) -> float:
        if self.can_be_scaled:
            self.clear()
            return math.inf
        return update(self)

    monkeypatch.setattr(Gradient, "update", overflows)
    with caplog.at_level("INFO", logger="posgap"):
        history = train(again, steps, *arguments)[1]
    for ours, theirs in zip(history, expected, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-6)
    assert [text for text in caplog.messages if "positions differ" in text] == [
        "step 1: positions differ too much to be weighed during the backward pass; from now on they are "
        "weighed before it"
    ]
    # And one that is not finite all the same is said to be so.
    monkeypatch.setattr(Gradient, "update", lambda self: math.inf)
    with pytest.raises(NotFinite, match="step 1: .*gradient"):
        train(Student(copy.deepcopy(moved), objective, teacher), steps, *arguments)


# Running out of memory


@pytest.mark.parametrize("where", ["reading the teacher's states", "the optimizer's update"])
def test_out_of_memory_elsewhere_is_said_in_a_line_too(where, lively, collate, tmp_path, monkeypatch):
    objective, teacher = R1(AT_FIRST, "paper", 1.0), teacher_of(lively, collate, tmp_path / "t")
    owner, name = (Teacher, "read_missing") if "teacher" in where else (Gradient, "update")
    monkeypatch.setattr(owner, name, lambda *_: torch.empty(1 << 52))
    arguments = objective, collate, Schedule(1e-3), Accelerator(cpu=True), 8192
    with pytest.raises(NoRoom, match=f" {where}; .* gradient_checkpointing"):
        train(Student(lively, objective, teacher), [[TrainingPrompt(0, (2,))]], *arguments)


class Small(Student):
    """A student on a machine where a call of more than so many tokens asks the allocator for more than there is."""

    def __init__(self, *arguments, most_tokens):
        super().__init__(*arguments)
        self.most_tokens = most_tokens

    def forward(self, batch, states_alone=False):
        if torch.is_grad_enabled() and batch.input_ids.numel() > self.most_tokens:
            torch.empty(1 << 52)
        return super().forward(batch, states_alone)


def test_out_of_memory_halves_the_micro_batch_and_does_the_step_again(lively, collate, tmp_path, caplog):
    objective, teacher = R1(AT_FIRST, "paper", 1.0), teacher_of(lively, collate, tmp_path / "t")
    steps = plan_steps([TRIVIAL] * len(collate.pairs), objective.draw_prompts, 4, 2, 10, seed=0)
    runs = []
    for most_tokens in (8192, 100):
        student = Small(copy.deepcopy(lively), objective, teacher, most_tokens=most_tokens)
        _, history = train(student, steps, objective, collate, Schedule(1e-3), Accelerator(cpu=True), 8192)
        runs.append((history, parameters(student)))
    (whole, there), (halved, here) = runs
    for a, b in zip(whole, halved):
        assert a == pytest.approx(b, rel=1e-5)
    assert (there - here).norm() < 1e-4 * (there - parameters(lively)).norm()
    lines = [record.getMessage() for record in caplog.records if "out of memory" in record.getMessage()]
    assert len(lines) == 2 and lines[0].startswith("step 1: out of memory; from now on micro-batches have at most ")


def test_all_processes_go_back_when_another_is_out_of_memory(lively, pairs, collate, monkeypatch):
    """The other process is made up: its word comes where all meet."""
    steps = [[TrainingPrompt(pair, (2,)) for pair in range(4)]]
    arguments = CrossEntropy(pairs), collate, Schedule(1e-3), Accelerator(cpu=True), 8192
    twin, its_words = copy.deepcopy(lively), iter([[None]])
    expected = train(Student(lively, arguments[0]), steps, *arguments)[1]
    monkeypatch.setattr(engine, "gather", lambda own: [own, *next(its_words, [])])
    student = Counted(twin, arguments[0])
    (figures,) = train(student, steps, *arguments)[1]
    assert figures == pytest.approx(expected[0], rel=1e-6)
    assert student.rows == Counter({True: 8})
    torch.testing.assert_close(parameters(twin), parameters(lively), rtol=1e-4, atol=1e-7)


def test_out_of_memory_with_a_single_prompt_says_what_to_do(lively, collate, pairs):
    student = Small(lively, CrossEntropy(pairs), most_tokens=20)
    steps = [[TrainingPrompt(0, (2,)), TrainingPrompt(0, (3,))]]
    with pytest.raises(NoRoom, match=r" step 1, .* \d+ tokens; .*gradient_checkpointing"):
        train(student, steps, CrossEntropy(pairs), collate, Schedule(1e-3), Accelerator(cpu=True), 8192)


def test_gradient_checkpointing_and_chunks_do_not_change_the_numbers(lively, collate, tmp_path, monkeypatch):
    teacher, objective = teacher_of(lively, collate, tmp_path / "t"), R1(AT_FIRST, "paper", 1.0)
    plain, frugal = copy.deepcopy(lively), copy.deepcopy(lively)
    plain_run = run(plain, collate, objective, teacher, epochs=2)
    monkeypatch.setattr(head_module, "NUMBERS_AT_ONCE", 60)
    checkpoint_activations(frugal)
    again = run(frugal, collate, objective, teacher, epochs=2)
    for a, b in zip(plain_run, again):
        assert a == pytest.approx(b, rel=1e-6)
    torch.testing.assert_close(parameters(frugal), parameters(plain), rtol=1e-4, atol=1e-7)


def test_a_loss_that_is_not_finite_names_its_prompts_and_stops_before_the_update(model, pairs, collate):
    student, before = Student(model, CrossEntropy(pairs)), parameters(model)
    whole = student.forward

    def poisoned(batch):
        # One example's loss overflows.
        hit = torch.tensor([row.pair == 2 for row in batch.rows])
        return torch.where(hit, torch.inf, whole(batch))

    student.forward = poisoned
    steps = [[TrainingPrompt(0, (2,)), TrainingPrompt(0, (3,)), TrainingPrompt(2, (4,)), TrainingPrompt(2, (5,))]]
    with pytest.raises(NotFinite, match="step 1: .* 2 of 4 prompts ") as caught:
        train(student, steps, CrossEntropy(pairs), collate, Schedule(1e-3), Accelerator(cpu=True), 100)
    assert caught.value.rows == [TrainingPrompt(2, (4,)), TrainingPrompt(2, (5,))]
    assert torch.equal(parameters(model), before)


def test_the_learning_rate_rises_from_zero_and_decays_to_zero():
    schedule = Schedule(1.0, warmup_steps=4)
    rates = [schedule.rate(step, 10) for step in range(11)]
    assert rates[:5] == [0, 0.25, 0.5, 0.75, 1.0]
    assert rates[10] == 0
    assert all(a > b for a, b in pairwise(rates[4:]))


@pytest.mark.parametrize("steps", [7, 40, 101])
def test_the_rate_is_that_of_the_hugging_face_trainer(steps):
    """Of its default, linear, whose first update has a rate of 0 where there is a warm-up."""
    peak = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    warmup = math.ceil(0.05 * steps)
    theirs = get_scheduler("linear", peak, num_warmup_steps=warmup, num_training_steps=steps)
    ours = Schedule(1.0, 0.05)
    for step in range(steps):
        assert ours.rate(step, steps) == pytest.approx(theirs.get_last_lr()[0])
        peak.step()
        theirs.step()


def test_in_one_kernel_adamw_is_torchs_of_each_number(lively):
    """The updates of 20 steps whose gradients have a direction in common."""
    lively.float()
    plain, before = copy.deepcopy(lively), parameters(lively)
    optimizer = adamw(lively.parameters(), 1e-3)
    expected = torch.optim.AdamW(plain.parameters(), lr=1e-3, weight_decay=0.0, foreach=False)
    torch.manual_seed(0)
    directions = [torch.randn_like(each) for each in plain.parameters()]
    for _ in range(20):
        for ours, theirs, direction in zip(lively.parameters(), plain.parameters(), directions):
            ours.grad = 0.3 * direction + torch.randn_like(direction)
            theirs.grad = ours.grad.clone()
        optimizer.step()
        expected.step()
    difference, whole = parameters(lively) - parameters(plain), parameters(plain) - before
    assert difference.norm() < 1e-6 * whole.norm()


# Checkpoints


class Interrupted(Exception):
    pass


def interrupt_after(step):
    def on_step(figures):
        if figures["step"] == step:
            raise Interrupted

    return on_step


@pytest.mark.parametrize("last", [1, 4, 7])
def test_training_goes_on_from_its_checkpoint_as_if_nothing_had_been(last, lively, pairs, collate, tmp_path):
    whole, broken, resumed = (copy.deepcopy(lively) for _ in range(3))
    objective = CrossEntropy(pairs)
    history = run(whole, collate, objective, epochs=4)
    keep = {"checkpoints": Checkpoints(tmp_path / "c"), "save_steps": 3}
    with pytest.raises(Interrupted):
        run(broken, collate, objective, epochs=4, on_step=interrupt_after(last), **keep)
    assert keep["checkpoints"].latest() == (last - 1) // 3 * 3
    assert run(resumed, collate, objective, epochs=4, **keep) == history
    assert torch.equal(parameters(resumed), parameters(whole))


def test_a_checkpoint_of_adapters_has_no_base_and_is_gone_on_from_as_well(lively, pairs, collate, tmp_path):
    torch.manual_seed(0)
    add_adapters(lively, rank=2)
    whole, broken, resumed = (copy.deepcopy(lively) for _ in range(3))
    objective = CrossEntropy(pairs)
    history = run(whole, collate, objective, epochs=4)
    keep = {"checkpoints": Checkpoints(tmp_path / "c"), "save_steps": 3}
    with pytest.raises(Interrupted):
        run(broken, collate, objective, epochs=4, on_step=interrupt_after(4), **keep)
    shards = list((tmp_path / "c" / "step-3").glob("*.safetensors"))
    assert len(shards) == 4 and all(".lora_" in name for shard in shards for name in load_file(shard))
    assert run(resumed, collate, objective, epochs=4, **keep) == history
    assert torch.equal(parameters(resumed), parameters(whole))


def test_on_sigterm_a_checkpoint_is_written_and_the_run_stops(lively, pairs, collate, tmp_path):
    checkpoints = Checkpoints(tmp_path / "c")
    whole = copy.deepcopy(lively)
    expected = run(whole, collate, CrossEntropy(pairs), epochs=4)
    terminate = lambda figures: os.kill(os.getpid(), signal.SIGTERM) if figures["step"] == 5 else None  # noqa: E731
    with pytest.raises(TerminationSignal, match="after step 5 of 8") as caught:
        run(copy.deepcopy(lively), collate, CrossEntropy(pairs), epochs=4, checkpoints=checkpoints, on_step=terminate)
    assert caught.value.exit_code == 143
    assert checkpoints.latest() == 5
    assert run(lively, collate, CrossEntropy(pairs), epochs=4, checkpoints=checkpoints) == expected
    assert torch.equal(parameters(lively), parameters(whole))


# LoRA


def test_lora_begins_at_the_base_trains_adapters_alone_and_merges_into_plain_weights(lively, pairs, collate):
    lively.float()
    base, ids = copy.deepcopy(lively), collate([TrainingPrompt(0, (2,))]).input_ids
    before = base(ids).logits.detach()
    add_adapters(lively, rank=4)
    torch.testing.assert_close(lively(ids).logits, before)
    run(lively, collate, CrossEntropy(pairs), epochs=4)
    adapters = {name: p for name, p in lively.named_parameters() if p.requires_grad}
    plain = merge_adapters(copy.deepcopy(base), adapters, rank=4).state_dict()
    assert plain.keys() == base.state_dict().keys()
    assert torch.equal(plain["model.embed_tokens.weight"], base.model.embed_tokens.weight)
    base.load_state_dict(plain)
    trained = lively.eval()(ids).logits
    assert (trained - before).abs().max() > 0.1
    torch.testing.assert_close(base(ids).logits, trained, rtol=1e-3, atol=1e-4)


def test_per_row_means_come_from_the_tokens(model, collate, teacher):
    batch = collate([TrainingPrompt(1, (3,))])
    token_losses = token_kl(
        teacher.head(teacher.states_of(batch)), model(batch.input_ids).logits.flatten(0, 1)[batch.columns]
    )
    expected = per_row(token_losses, batch.lengths) / 3
    torch.testing.assert_close(Student(model, KL, teacher)(batch), expected, rtol=1e-5, atol=1e-7)


def test_rope_that_follows_the_length_is_refused_where_one_pass_differs():
    """Ten tokens of prompt and three of a response fit the twelve that are read; padding beyond them changes both."""
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
    config = LlamaConfig(
        vocab_size=40, hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=13, rope_parameters=rope,
    )  # fmt: skip
    model = LlamaForCausalLM(config)

    def states(width):
        ids, targets = torch.ones(1, width, dtype=torch.long), torch.ones(3, dtype=torch.long)
        return Student(model, KL).response_states(
            Batch([TrainingPrompt(0, (1,))], ids, torch.arange(9, 12), targets, torch.tensor([3]))
        )

    assert states(12).shape == (3, 16)
    with pytest.raises(PosgapError, match=r"RoPE \(dynamic\) .* 13 tokens"):
        states(16)


# What rounding makes


def test_the_floor_is_what_rounding_makes_of_a_model_and_itself(lively, collate, tmp_path):
    lively.float()  # autocast leaves what is float64
    teacher = teacher_of(lively, collate, tmp_path / "t", mixed=True)
    floor = rounding_floor.measure_floor(Student(lively, KL, teacher), torch.device("cpu"))
    rows = teacher_prompts(collate.pairs)[: rounding_floor.ROWS]
    kls = []
    for row in rows:
        prompt, response = collate.token_ids(row)
        ids = torch.tensor([prompt + response])
        exact = lively(ids).logits[0, len(prompt) - 1 : -1]
        kls.append(token_kl(exact, teacher.head(teacher.states_of(collate([row])))))
    assert floor == pytest.approx(2 * float(torch.cat(kls).mean()), rel=1e-3) and floor > 1e-7
    exact = teacher_of(lively, collate, tmp_path / "exact")
    assert rounding_floor.measure_floor(Student(lively, KL, exact), torch.device("cpu")) < 1e-3 * floor


@pytest.mark.parametrize("mixed", [True, False])
def test_the_floor_is_measured_once_where_arithmetic_alone_is_rounded(mixed, lively, collate, tmp_path):
    teacher = teacher_of(lively, collate, tmp_path / "t", mixed)
    student, objective = Student(lively, R1(AT_FIRST, "paper", 1.0), teacher), R1(AT_FIRST, "paper", 1.0)
    steps = [[TrainingPrompt(0, (1,)), TrainingPrompt(0, (2,))], [TrainingPrompt(1, (1,)), TrainingPrompt(1, (4,))]]
    accelerator = processes.accelerator(mixed)
    _, history = train(student, steps, objective, collate, Schedule(1e-5), accelerator, 150)
    assert [rounding_floor.FIGURE in figures for figures in history] == [mixed, False]


def test_steps_below_the_floor_are_told():
    history = [{"step": 1, "activation_kl": 2e-3, "rounding_kl": 1e-3}, {"step": 2, "activation_kl": 9e-4}]
    assert "1 of 2 steps, the first of them step 2," in rounding_floor.warning(history)
    assert not rounding_floor.warning(history[:1])
    assert not rounding_floor.warning([{"step": 1, "activation_kl": 0.0}])  # in float32
    assert not rounding_floor.warning([{"step": 1, "cross_entropy": 0.0, "rounding_kl": 1e-3}])
    assert not rounding_floor.warning([])
