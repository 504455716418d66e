"""What a run would take, from a model's config alone: bytes and operations against what real tensors take."""

import gc
import json
from collections.abc import Callable
from functools import cache, partial
from itertools import accumulate

import pytest
import torch
from by_definition import SHAPE
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode
from transformers import LlamaConfig, LlamaForCausalLM

from posgap.distillation.footprint import (
    OPERATIONS,
    MicroBatchShape,
    Storages,
    activation_bytes,
    flops,
    run_micro_batch,
    size_of,
)
from posgap.distillation.lora import add_adapters
from posgap.distillation.planning import GB, H100_TFLOPS, USABLE, Way, _most_rows, standing, ways
from posgap.foundation.errors import BadOption, NoRoom
from posgap.models.checkpointing import checkpoint_activations
from posgap.options.plan_distill import PlanDistillConfig
from posgap.verbs.plan_distill import plan_distill

TOKENS = {"prompt_tokens": 120, "response_tokens": 8}


@pytest.fixture
def config(tmp_path):
    SHAPE.save_pretrained(tmp_path / "model")
    return PlanDistillConfig(model=str(tmp_path / "model"), **TOKENS)


def test_sizes_and_operations_are_those_of_the_real_model():
    model = LlamaForCausalLM(SHAPE)
    ids = torch.zeros(2, 128, dtype=torch.long)
    with FlopCounterMode(display=False, custom_mapping=OPERATIONS) as counted:
        hidden = model.base_model(input_ids=ids, use_cache=False).last_hidden_state[:, -8:].flatten(0, 1)
        model.lm_head(hidden).sum().backward()
    size = size_of(SHAPE, 0)
    assert size.parameters == size.trained == sum(parameter.numel() for parameter in model.parameters())
    assert size.head == model.lm_head.weight.numel()
    # Logits are dropped after the forward pass: the student's are computed once more, and the teacher's twice in all.
    heads = 3 * 2 * hidden.numel() * 512
    assert flops(SHAPE, MicroBatchShape(2, 128, 8, "float32")) == counted.get_total_flops() + heads
    adapters = size_of(SHAPE, 4)
    assert 0 < adapters.trained < adapters.parameters - size.parameters + 1


def test_working_memory_is_what_is_saved_and_grows_with_rows_and_layers_as_it_should():
    saved = []
    model = LlamaForCausalLM(SHAPE)
    parameters = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            saved.append((storage.data_ptr(), storage.nbytes()))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        hidden = model.base_model(input_ids=torch.zeros(2, 128, dtype=torch.long), use_cache=False).last_hidden_state
    held = sum(dict(saved).values())
    at_two = activation_bytes(SHAPE, MicroBatchShape(2, 128, 8, "float32"))
    assert held < at_two < 1.5 * held and hidden.numel()
    one, three = (activation_bytes(SHAPE, MicroBatchShape(rows, 128, 8, "float32")) for rows in (1, 3))
    assert three - at_two == pytest.approx(at_two - one, rel=0.02)


@pytest.mark.full
def test_what_checkpointing_keeps_of_a_layer_is_counted_to_the_byte():
    """What it reads."""
    micro = MicroBatchShape(2, 128, 8, "float32", checkpointing=True)
    expected = 4 * 2 * 128 * 64
    assert activation_bytes(layers(3), micro) - activation_bytes(layers(2), micro) == expected
    assert held(3) - held(2) == expected


@settings(max_examples=200)
@given(st.lists(st.integers(0, 50), min_size=1, max_size=40), st.integers(0, 900))
def test_the_rows_that_are_suggested_were_measured_and_fit(each_adds, free):
    """Of any number of bytes that does not become less with more rows."""
    bytes_of = list(accumulate(each_adds))
    rows, taken = _most_rows(lambda n: bytes_of[n - 1], len(bytes_of), free)
    best = sum(each <= free for each in bytes_of)
    assert rows <= best and best - rows <= max(0, rows // 8)
    assert taken == bytes_of[max(rows, 1) - 1]


def test_of_many_rows_the_bytes_are_counted_not_carried_on_from_few():
    """On SmolLM2's shape with short prompts a phase that does not grow hides what a second row takes."""
    fixed_at_few = {1: 609, 2: 610, 4: 1442, 8: 2757, 16: 5082, 32: 9492}
    taken = lambda rows: max(bytes_ for n, bytes_ in fixed_at_few.items() if n <= rows)  # noqa: E731
    assert _most_rows(taken, 32, 3000) == (15, 2757)


def test_no_keys_and_values_are_kept_of_a_micro_batch():
    """As training keeps none."""
    model, caches = LlamaForCausalLM(SHAPE).train(), []
    model.model.register_forward_hook(lambda module, args, output: caches.append(output.past_key_values))
    run_micro_batch(model, MicroBatchShape(1, 16, 8, "float32"))
    assert caches == [None]


def test_storages_are_counted_once_each_from_birth_to_end_and_the_most_there_were():
    storages = Storages(collect=False)
    there = torch.empty(25)
    storages.add(there)
    storages.add(there.view(5, 5))  # the same storage
    with storages:
        one = torch.empty(100)
        assert (storages.now, storages.most) == (500, 500)
        same = one[:10]
        halves = torch.empty(50, dtype=torch.bfloat16), torch.empty(0)
        assert (storages.now, storages.most) == (600, 600)
        del one
        assert storages.now == 600  # a part of it is still there
        del same, halves
        assert (storages.now, storages.most) == (100, 600)
        torch.empty(10)
        assert (storages.now, storages.most) == (100, 600)


@pytest.mark.full
def test_storages_in_cycles_are_no_more_than_those_that_live():
    """Of two that are in cycles of references, the first is collected before a new maximum is believed."""
    gc.disable()
    try:
        most = {}
        for collect in (True, False):
            storages = Storages(collect)
            with storages:
                for _ in range(2):
                    cycle = [torch.empty(100)]
                    cycle.append(cycle)
                    del cycle
            most[collect] = storages.most
            gc.collect()
            assert storages.now == 0
    finally:
        gc.enable()
    assert most == {True: 400, False: 800}


def layers(n: int) -> LlamaConfig:
    return LlamaConfig(**SHAPE.to_dict() | {"num_hidden_layers": n})


def held(n_layers: int) -> int:
    """The most bytes that real tensors take while layers alone are trained."""
    model = LlamaForCausalLM(layers(n_layers)).requires_grad_(False).train()
    checkpoint_activations(model)
    inputs = torch.zeros(2, 128, 64, requires_grad=True)
    return max_bytes(model, lambda: model.base_model(inputs_embeds=inputs, use_cache=False)[0].sum().backward())


def max_bytes(model: torch.nn.Module, work: Callable[[], None]) -> int:
    """The most bytes that real tensors take beside the model's, freed by the count of their references alone."""
    gc.collect()
    gc.disable()
    try:
        storages = Storages(collect=False)
        for parameter in model.parameters():
            storages.add(parameter)
            if parameter.grad is not None:
                storages.add(parameter.grad)
        before = storages.now
        with storages:
            work()
    finally:
        gc.enable()
    return storages.most - before


@pytest.mark.full
@pytest.mark.parametrize("arithmetic", ["float32", "bfloat16", "bfloat16 parameters"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_working_bytes_are_those_of_real_tensors(arithmetic, checkpointing):
    model = LlamaForCausalLM(SHAPE).train()
    if arithmetic == "bfloat16 parameters":
        model.bfloat16()
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    if checkpointing:
        checkpoint_activations(model)
    micro = MicroBatchShape(2, 128, 8, arithmetic, checkpointing)
    # With transformers 5.18 real tensors take as much more as the rotary frequencies do, with 5.23 nothing.
    more = max_bytes(model, lambda: run_micro_batch(model, micro)) - activation_bytes(SHAPE, micro)
    assert more in (0, model.model.rotary_emb.inv_freq.nbytes)


@pytest.mark.full
@pytest.mark.parametrize("changed", ["tied", "adapters"])
def test_working_bytes_of_shared_and_partly_trained_weights_match_real_tensors(changed):
    """A shared weight has one gradient, and what is not trained has none."""
    shape = LlamaConfig(**SHAPE.to_dict() | {"tie_word_embeddings": changed == "tied"})
    model = LlamaForCausalLM(shape).train()
    if rank := 4 * (changed == "adapters"):
        add_adapters(model, rank)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.zeros_like(parameter)
    micro = MicroBatchShape(2, 128, 8, "float32", lora_rank=rank)
    more = max_bytes(model, lambda: run_micro_batch(model, micro)) - activation_bytes(shape, micro)
    assert more in (0, model.model.rotary_emb.inv_freq.nbytes)
    size, unique = size_of(shape, rank), {id(parameter): parameter for parameter in model.parameters()}.values()
    assert size.parameters == sum(parameter.numel() for parameter in unique)
    assert size.trained == sum(parameter.numel() for parameter in unique if parameter.requires_grad)
    assert size.head == shape.vocab_size * shape.hidden_size


def test_bytes_that_stand_are_those_of_each_way():
    size, small = size_of(SHAPE, 0), size_of(SHAPE, 4)
    whole = 4 * size.head
    assert standing(Way("alone", False, 0), size, 1) == 16 * size.parameters + whole
    assert standing(Way("data parallel", False, 0), size, 8) == 20 * size.parameters + whole
    assert standing(Way("alone", False, 4), small, 1) == 4 * small.parameters + 12 * small.trained + whole
    two, three = (standing(Way(name, False, 0), size, 4) for name in ("zero2", "zero3"))
    assert two - three == 2 * size.parameters * 3 / 4 - 2e9  # parameters in pieces, but some gathered at a time
    assert [way.strategy for way in ways(1)] == ["alone"] * 4 and len(list(ways(8))) == 12


@pytest.mark.full
def test_the_first_way_that_fits_is_suggested(config, capsys, monkeypatch):
    measured_once = cache(partial(activation_bytes, SHAPE))  # the plans ask for the same micro-batches
    monkeypatch.setattr("posgap.verbs.plan_distill.activation_bytes", lambda model, micro: measured_once(micro))
    plan = plan_distill(config)
    assert plan["options"] == ["--micro-batch-tokens 4096"]  # all 32 prompts of a step
    assert plan["updates"] == 94 and plan["tokens"] == 3000 * 128
    assert json.loads(capsys.readouterr().out)["ways"][0]["rows"] == 32
    alone = standing(Way("alone", False, 0), size_of(SHAPE, 0), 1)
    tight = config.model_copy(update={"gpu_memory": 1.7 * alone / GB / USABLE})
    assert 0 < plan_distill(tight)["ways"][-1]["rows"] < 32
    adapters = plan_distill(config.model_copy(update={"gpu_memory": 0.9 * alone / GB / USABLE}))
    assert "--lora-rank 16" in adapters["options"] and adapters["ways"][-1]["memory"] < 0.9 * alone
    eight = plan_distill(config.model_copy(update={"gpus": 8}))
    assert [way["way"]["strategy"] for way in eight["ways"]] == ["data parallel", "zero2", "zero3"]
    assert eight["hours"] == pytest.approx(plan["hours"] / 8)
    quicker = plan_distill(config.model_copy(update={"gpu_tflops": 1.5 * H100_TFLOPS}))
    assert quicker["hours"] == pytest.approx(plan["hours"] / 1.5)


def test_operations_are_counted_once_of_the_way_that_is_suggested(config, monkeypatch):
    counted = []
    monkeypatch.setattr("posgap.verbs.plan_distill.activation_bytes", lambda model, micro: micro.rows)
    monkeypatch.setattr("posgap.verbs.plan_distill.flops", lambda model, micro: counted.append(micro) or 1000)
    plan = plan_distill(config.model_copy(update={"gpus": 8}))
    assert counted == [MicroBatchShape(1, 128, 8, "bfloat16")] and len(plan["ways"]) == 3
    # The teacher reads the best prompt of 300 examples, forwards alone.
    assert plan["operations"] == 1000 * (3000 + 300 / 3)


def test_what_cannot_be_is_refused_in_a_line(config):
    with pytest.raises(NoRoom, match=" 1 GPUs of 1e-05 GB"):
        plan_distill(config.model_copy(update={"gpu_memory": 1e-5}))
    with pytest.raises(BadOption, match="^--prompt-tokens: .* 512 "):
        plan_distill(config.model_copy(update={"prompt_tokens": 600}))


@pytest.mark.nightly  # an 8B model's layers, on CPUs
def test_a_large_vocabulary_takes_hardly_more_working_memory():
    """An 8B model's, with parameters in pieces, where a micro-batch makes one gradient of the head and no more."""
    taken = [
        activation_bytes(
            LlamaConfig(
                vocab_size=vocabulary, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32,
                num_attention_heads=32, num_key_value_heads=8,
            ),
            MicroBatchShape(1, 8192 + 512, 512, "bfloat16 parameters", checkpointing=True),
        )
        for vocabulary in (32_000, 262_144)
    ]  # fmt: skip
    assert taken[0] <= taken[1] < 1.1 * taken[0]
