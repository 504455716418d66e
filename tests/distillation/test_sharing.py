"""What the prompts of an example have in common, read once."""

from collections import Counter

import pytest
import torch
from accelerate import Accelerator
from flash_attention import flash_attn_varlen_func, stand_in
from hypothesis import given
from hypothesis import strategies as st
from transformers import (
    AutoModelForCausalLM,
    FalconConfig,
    FalconH1Config,
    Gemma2Config,
    Gemma3TextConfig,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
)

from posgap.distillation import batching
from posgap.distillation import branches as branches_module
from posgap.distillation.batches import Draw
from posgap.distillation.batching import lay_out_alone, lay_out_shared
from posgap.distillation.branches import attention_over_branches, pack_shared_prefixes
from posgap.distillation.engine import TrainStep
from posgap.distillation.gradients import Gradient
from posgap.distillation.objectives import R1, CrossEntropy
from posgap.distillation.student import Student
from posgap.distillation.teacher_states import Teacher, TeacherStates, frozen_head
from posgap.mitigations.in_force import scale_model
from posgap.models.checkpointing import checkpoint_activations

SHAPE = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "initializer_range": 0.2,
}
GQA = {**SHAPE, "num_key_value_heads": 2}
DRAWS = [Draw(0, ((2,), (3,), (5,))), Draw(1, ((3,), (5,), (4,))), Draw(3, ((2,), (3,), (5,))), Draw(2, ((4,), (3,)))]


def model_of(config, attention="sdpa"):
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config, attn_implementation=attention).double().eval()


SHARING = {
    "Llama": lambda: model_of(LlamaConfig(**SHAPE)),
    "a factor a layer": lambda: scale_model(model_of(LlamaConfig(**GQA)), [1.0, 1.7]),
    "windows": lambda: model_of(MistralConfig(**GQA, sliding_window=6)),
    "FlashAttention, by a stand-in": lambda: model_of(LlamaConfig(**GQA), "flash_attention_2"),
    "FlashAttention and windows": lambda: model_of(MistralConfig(**GQA, sliding_window=6), "flash_attention_2"),
    "windows in some layers": lambda: model_of(
        Gemma3TextConfig(**GQA, head_dim=8, sliding_window=6, layer_types=["sliding_attention", "full_attention"])
    ),
    "experts": lambda: model_of(MixtralConfig(**GQA, num_local_experts=3, experts_implementation="eager")),
    "positions that are learnt": lambda: model_of(GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=4)),
}
OTHERS = {
    "recurrent": lambda: AutoModelForCausalLM.from_config(
        FalconH1Config(**GQA, mamba_d_ssm=32, mamba_n_heads=4, mamba_d_head=8, mamba_d_state=8, mamba_chunk_size=8)
    ).double(),
    "ALiBi": lambda: model_of(
        FalconConfig(vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, alibi=True)
    ),
    "eager": lambda: AutoModelForCausalLM.from_config(
        Gemma2Config(**GQA, head_dim=8), attn_implementation="eager"
    ).double(),
}


@pytest.fixture(autouse=True)
def _short(monkeypatch):
    """As if the tests' short prompts were long ones, and the machine had FlashAttention."""
    stand_in(monkeypatch)
    monkeypatch.setattr(batching, "TOKENS_A_BRANCH", 0)
    monkeypatch.setattr(branches_module, "QUERIES_AT_ONCE", 4)


class Counted(Student):
    """A student that counts the tokens that it reads with and without gradients."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.tokens: Counter[bool] = Counter()

    def forward(self, batch, states_alone=False):
        self.tokens[torch.is_grad_enabled()] += batch.input_ids.numel()
        return super().forward(batch, states_alone)


def step(student, objective, collate, tokens, rows, shares):
    """The figures and the gradient of a step."""
    gradients = []
    student.zero_grad()
    accelerator = Accelerator(cpu=True)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.0)
    optimizer.register_step_pre_hook(lambda *_: gradients.extend(p.grad.clone() for p in student.parameters()))
    gradient = Gradient(accelerator, student, accelerator.prepare(optimizer), max_norm=1e9)
    loop = TrainStep(student, gradient, objective, collate, torch.device("cpu"), tokens, shares)
    return loop.run(1, rows), gradients, loop


def student_of(model, objective, collate, tmp_path) -> Counted:
    teacher = None
    if isinstance(objective, R1):
        teacher = Teacher(TeacherStates(tmp_path, {}), frozen_head(model, False), collate)
        teacher.read_missing(Student(model, objective), torch.device("cpu"), 1000)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.1)
    return Counted(model, objective, teacher)


def same(one_by_one, together) -> bool:
    """Whether two gradients are the same to 1e-6 of their norm: the losses are computed in float32."""
    norm = torch.stack([g.norm() for g in one_by_one]).norm()
    return torch.stack([(a - b).norm() for a, b in zip(one_by_one, together)]).norm() < 1e-6 * norm


def by_formula(query, key, value, *layout, scale, window_size, enable_gqa):
    """Stands for torch's flash kernel, which a GPU has: the last query is that of the last key."""
    return flash_attn_varlen_func(query, key, value, *layout, softmax_scale=scale, window_size=window_size)


@pytest.mark.parametrize("family", SHARING)
def test_sharing_changes_no_gradient(family, collate, tmp_path, monkeypatch):
    if "FlashAttention" in family:
        monkeypatch.setattr(branches_module, "_has_flash", lambda query, value: True)
        monkeypatch.setattr(branches_module, "varlen_attn", by_formula)
    objective = R1([(1,)] * 4, "paper", 1.0)
    student = student_of(SHARING[family](), objective, collate, tmp_path)
    rows = objective.draw_prompts(DRAWS)
    alone, expected, _ = step(student, objective, collate, 8192, rows, False)
    read = student.tokens[True]
    student.tokens.clear()
    with attention_over_branches(student.model) as shares:
        figures, gradients, loop = step(student, objective, collate, 8192, rows, shares)
    assert loop.shares_prefixes and student.tokens[True] < read
    assert figures == pytest.approx(alone, rel=1e-6) and same(expected, gradients)


def test_torch_s_flash_kernel_takes_branches_as_they_are_given(monkeypatch):
    """Its own checks, and the shapes of what it returns, forwards and backwards: a kernel is on a GPU alone."""
    _, _, branches = pack_shared_prefixes([[[1, 2, 3, 4], [1, 2, 5, 6, 7]]], [[1, 1]])
    tensors = [torch.empty(1, heads, 7, 8, dtype=torch.bfloat16, device="meta") for heads in (4, 2, 2)]
    query, key, value = (each.requires_grad_() for each in tensors)
    out = branches_module._by_flash(query, key, value, branches, 3, 0.5)
    out.sum().backward()
    assert out.shape == (1, 7, 4, 8) and query.grad.shape == query.shape and key.grad.shape == key.shape
    seen = []
    monkeypatch.setattr(branches_module, "_has_flash", lambda query, value: seen.append({query.dtype, value.dtype}))
    tensors = [torch.zeros(1, 4, 7, 8) for _ in range(3)]
    with torch.autocast("cpu", torch.bfloat16):  # where parameters are float32, rotated queries are
        assert branches_module._over_branches(*tensors, branches).dtype == torch.bfloat16
    assert seen == [{torch.bfloat16}]
    columns = [column for _, path in branches for span in path for column in range(*span)]
    layout = branches.flash_layout(torch.device("cpu"))  # which is made once, wherever
    assert layout is branches.flash_layout(query.device) and layout.columns.shape == (len(columns),)


def test_a_flash_layout_has_every_path_and_its_ends():
    _, _, branches = pack_shared_prefixes([[[1, 2, 3, 4], [1, 2, 5, 6, 7]], [[8, 9]]], [[1, 1], [1]])
    columns, queries, keys, most_queries, most_keys = branches.flash_layout(torch.device("cpu"))
    assert columns.tolist() == [0, 1, 2, 3, 0, 1, 4, 5, 6, 7, 8]
    assert queries.tolist() == [0, 4, 7, 9] and keys.tolist() == [0, 4, 9, 11]
    assert (most_queries, most_keys) == (4, 5)


@pytest.mark.parametrize("method", ["paper", "none", "last", "cross entropy", "checkpointing"])
@pytest.mark.parametrize("tokens", [60, 140])
def test_sharing_changes_no_gradient_of_a_method(method, tokens, pairs, collate, tmp_path, monkeypatch):
    """Whatever fits into a micro-batch."""
    monkeypatch.setattr(batching.BatchLayout, "cost", property(lambda self: -self.shared))  # sharing is always taken
    model = SHARING["Llama"]()
    if method == "checkpointing":
        checkpoint_activations(model)
    best = (5,) if method == "last" else (1,)  # the prompts of the last share most with the others
    kind = "none" if method == "none" else "paper"
    objective = CrossEntropy(pairs) if method == "cross entropy" else R1([best] * 4, kind, 0.5)
    student = student_of(model, objective, collate, tmp_path).train()
    rows = list(dict.fromkeys(objective.draw_prompts(DRAWS)))
    alone, expected, _ = step(student, objective, collate, tokens, rows, False)
    with attention_over_branches(student.model) as shares:
        figures, gradients, loop = step(student, objective, collate, tokens, rows, shares)
    assert loop.shares_prefixes and figures == pytest.approx(alone, rel=1e-6) and same(expected, gradients)


class Small(Counted):
    """A student whose machine has memory for the gradient of so many tokens."""

    def forward(self, batch, states_alone=False):
        if torch.is_grad_enabled() and batch.input_ids.numel() > 40:
            torch.empty(1 << 52)
        return super().forward(batch, states_alone)


def test_bundles_are_divided_where_memory_does_not_hold_them(collate, tmp_path, monkeypatch):
    monkeypatch.setattr(batching.BatchLayout, "cost", property(lambda self: -self.shared))
    objective = R1([(1,)] * 4, "paper", 1.0)
    student = student_of(SHARING["Llama"](), objective, collate, tmp_path)
    rows = objective.draw_prompts(DRAWS)
    alone, expected, _ = step(student, objective, collate, 8192, rows, False)
    small = Small(student.model, objective, student.teacher)
    with attention_over_branches(small.model) as shares:
        figures, gradients, loop = step(small, objective, collate, 8192, rows, shares)
    assert loop.micro_batch_tokens < 60 and loop.shares_prefixes
    assert figures == pytest.approx(alone, rel=1e-6) and same(expected, gradients)


@pytest.mark.parametrize("family", OTHERS)
def test_models_that_cannot_share_read_prompts_one_by_one(family, collate, tmp_path):
    objective = R1([(1,)] * 4, "paper", 1.0)
    student = student_of(OTHERS[family](), objective, collate, tmp_path)
    rows = objective.draw_prompts(DRAWS)
    _, expected, _ = step(student, objective, collate, 8192, rows, False)
    with attention_over_branches(student.model) as shares:
        _, gradients, loop = step(student, objective, collate, 8192, rows, shares)
    assert not loop.shares_prefixes and same(expected, gradients)


prompts = st.lists(st.lists(st.integers(0, 1), min_size=2, max_size=12), min_size=1, max_size=5)


@given(st.lists(prompts, min_size=1, max_size=3))
def test_a_layout_has_every_prompt_whole_and_its_last_tokens_for_itself(bundles):
    layout = pack_shared_prefixes(bundles, [[2] * len(bundle) for bundle in bundles])
    columns = [[column for span in branch.path for column in range(*span)] for branch in layout.branches]
    flat = [prompt for bundle in bundles for prompt in bundle]
    assert [[layout.ids[column] for column in path] for path in columns] == flat
    assert [[layout.positions[column] for column in path] for path in columns] == [list(range(len(p))) for p in flat]
    own = [column for branch in layout.branches for column in range(*branch.own)]
    assert own == list(range(len(layout.ids))) and all(b.own[1] - b.own[0] >= 2 for b in layout.branches)


def test_prompts_that_have_little_in_common_are_read_one_by_one():
    rows, lengths = [("a", 0), ("a", 1), ("b", 0)], [4, 4, 4]
    prompts = [[0, 1, 2, 3], [4, 1, 2, 3], [0, 1, 2, 3]]
    shared = lay_out_shared(rows, ["a", "a", "b"], prompts, 1, 100)
    assert shared.cost >= lay_out_alone(rows, lengths, 1, 100).cost
    assert sorted(shared.bundles) == [(0,), (1,), (2,)]
