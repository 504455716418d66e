"""The plan of a distillation from what a micro-batch takes, which is made up here: by closed forms and brute force."""

import json
import logging
import math
from dataclasses import fields, replace
from math import ceil

import pytest
from by_definition import SHAPE
from transformers import LlamaConfig

from posgap.distillation.engine import Schedule
from posgap.distillation.footprint import MicroBatchShape, Size
from posgap.distillation.movement import Movement, default_learning_rate
from posgap.distillation.planning import LORA_RANK, Way, Workload, export_bytes, need, standing, ways
from posgap.foundation.errors import BadOption, NoRoom
from posgap.options.plan_distill import PlanDistillConfig
from posgap.verbs.plan_distill import measured_tflops, plan_distill

GB = 10**9
OF_ALL = Size(parameters=GB, trained=GB, head=GB // 10)
OF_ADAPTERS = replace(OF_ALL, trained=GB // 100)
A_ROW, FIXED = GB, 5 * GB


def sized(lora_rank: int) -> Size:
    return OF_ADAPTERS if lora_rank else OF_ALL


def taken(shape: MicroBatchShape) -> int:
    """A tenth of it where activations are computed again."""
    return (FIXED + shape.rows * A_ROW) // (10 if shape.checkpointing else 1)


@pytest.fixture
def config(tmp_path) -> PlanDistillConfig:
    SHAPE.save_pretrained(tmp_path / "model")
    return PlanDistillConfig(
        model=str(tmp_path / "model"), prompt_tokens=120, response_tokens=8, gpu_memory=80, n_examples=100, k=4,
        epochs=2, batch_size=32, gpu_tflops=200,
    )  # fmt: skip


def work_of(config: PlanDistillConfig, **changed) -> Workload:
    return Workload(**{field.name: getattr(config, field.name) for field in fields(Workload)} | changed)


@pytest.mark.parametrize("gpus", [1, 8])
@pytest.mark.parametrize("memory", [2, 6, 17, 20, 22, 24, 25, 30, 80])
def test_as_many_prompts_are_read_at_once_as_fit_beside_what_stands(config, gpus, memory):
    """Of a process's share of a step."""
    asked = config.model_copy(update={"gpus": gpus, "gpu_memory": memory})
    for way in ways(gpus):
        size = sized(way.lora_rank)
        stands, usable = standing(way, size, gpus), 0.92 * memory * GB
        of_rows = [taken(MicroBatchShape(rows, 128, 8, checkpointing=way.checkpointing)) for rows in range(33)]
        fits = [rows for rows in range(1, ceil(32 / gpus) + 1) if stands + of_rows[rows] <= usable]
        found = need(work_of(asked), way, sized, taken)
        assert found.way == way and found.standing == stands
        if stands > usable:
            assert (found.rows, found.memory) == (0, 0)
            continue
        assert found.rows == max(fits, default=0)
        assert found.memory == pytest.approx(stands + of_rows[max(found.rows, 1)])


def test_a_micro_batch_is_asked_for_as_the_way_reads_it(config):
    asked = []
    need(work_of(config), Way("zero3", True, 16), sized, lambda shape: asked.append(shape) or 1)
    assert asked == [MicroBatchShape(rows, 128, 8, "bfloat16 parameters", True, 16) for rows in (1, 32)]


@pytest.mark.parametrize(
    ("way", "arithmetic", "activations", "options"),
    [
        (Way("alone", False, 0), "bfloat16", "kept", []),
        (Way("data parallel", True, 0), "bfloat16", "computed again", ["--gradient-checkpointing"]),
        (Way("zero2", False, 8), "bfloat16 parameters", "kept", ["--deepspeed zero2", "--lora-rank 8"]),
        (Way("zero3", False, 0), "bfloat16 parameters", "kept", ["--deepspeed zero3"]),
    ],
    ids=str,
)
def test_a_way_is_asked_for_by_its_options(way, arithmetic, activations, options):
    assert (way.arithmetic, way.activations, way.options()) == (arithmetic, activations, options)


def test_ways_come_in_the_order_in_which_they_are_preferred():
    several = ("data parallel", "zero2", "zero3")
    for gpus, strategies in ((1, ("alone",)), (2, several)):
        assert list(ways(gpus)) == [
            Way(strategy, checkpointing, rank)
            for rank in (0, LORA_RANK)
            for checkpointing in (False, True)
            for strategy in strategies
        ]


@pytest.mark.parametrize(
    ("way", "size", "gpus", "gigabytes"),
    [
        # Parameters, Adam's means, gradients and the head in float32.
        (Way("alone", False, 0), OF_ALL, 1, 16 + 0.4),
        (Way("alone", False, 16), OF_ADAPTERS, 1, 4 + 0.12 + 0.4),
        (Way("data parallel", False, 0), OF_ALL, 4, 20 + 0.4),
        # Parameters and head in bfloat16; of four processes each has a quarter of the rest, and buckets.
        (Way("zero2", False, 0), OF_ALL, 4, 2 + 18 / 4 + 2 + 0.2),
        (Way("zero2", False, 16), OF_ADAPTERS, 4, 2 + 0.18 / 4 + 2 + 0.2),
        (Way("zero3", False, 0), OF_ALL, 4, 20 / 4 + 2 + 2 + 0.2),
    ],
    ids=str,
)
def test_what_stands_is_so_many_bytes_a_parameter(way, size, gpus, gigabytes):
    assert standing(way, size, gpus) == pytest.approx(gigabytes * GB)


@pytest.fixture
def made_up(monkeypatch):
    monkeypatch.setattr("posgap.verbs.plan_distill.size_of", lambda model, rank: sized(rank))
    monkeypatch.setattr("posgap.verbs.plan_distill.activation_bytes", lambda model, shape: taken(shape))
    monkeypatch.setattr("posgap.verbs.plan_distill.flops", lambda model, shape: 10**15 * (1 + shape.checkpointing))


def test_figures_of_a_plan_follow_from_what_is_trained(config, made_up, capsys, caplog):
    caplog.set_level(logging.INFO)
    plan = plan_distill(config.model_copy(update={"gpu_memory": 24.4}))
    # 16.4 GB stand, and of 22.448 GB that can be used five are fixed and one is a prompt's.
    best = need(work_of(config, gpu_memory=24.4), Way("alone", False, 0), sized, taken)
    assert best.rows == 1 and plan["options"] == ["--micro-batch-tokens 128"]
    prompts, size = 2 * 100 * 5, OF_ALL
    assert plan["updates"] == ceil(prompts / 32) and plan["tokens"] == prompts * 128
    assert plan["operations"] == (prompts + 100 / 3) * 10**15
    assert plan["hours"] == pytest.approx(plan["operations"] / (200e12 * 0.35) / 3600)
    assert plan["memory_gb"] == pytest.approx(16.4 + 6)
    states = 4 * 100 * 8 * SHAPE.hidden_size
    assert plan["disk_gb"] == pytest.approx((2 * 12 * size.trained + 2 * size.parameters + states) / GB)
    assert [way["rows"] for way in plan["ways"]] == [1] and json.loads(capsys.readouterr().out) == plan
    assert caplog.messages == [
        "| processes | trained | activations | always there | with prompts | prompts at once |",
        "|-----------|---------|-------------|-------------:|-------------:|----------------:|",
        "| alone     | all     | kept        |      16.4 GB |      22.4 GB |               1 |",
        f"suggested: posgap distill --model {config.model} --micro-batch-tokens 128",
        "32 updates, 1.28e+05 tokens, 1.03e+18 operations: 4.10 hours at 35 % of 200 TFLOP/s a GPU; 26 GB of disk for "
        "two checkpoints, the teacher's states and the model",
        "writing the model takes 4.4 GB of main memory",
        "learning rate 1e-05: 32 updates move a weight by at most 0.00017, 0.83 % of a typical one, or 1.4 steps of "
        "bfloat16; a layer's output by at most 0.14 times what the paper's run can",
        "these updates are too few or too small to change answers: give more examples or epochs, or a higher "
        "--learning-rate",
    ]
    # Adam's first update is by the rate itself; 32 of them fall linearly to nothing.
    assert plan["movement"]["reach"] == pytest.approx(1e-5 * 33 / 2)


def test_the_first_way_that_fits_is_suggested_and_what_was_tried_before_is_told(config, made_up, caplog):
    caplog.set_level(logging.INFO)
    plan = plan_distill(config.model_copy(update={"gpu_memory": 24}))  # with activations computed again
    assert plan["options"] == ["--gradient-checkpointing", "--micro-batch-tokens 4096"]
    assert plan["operations"] == (1000 + 100 / 3) * 2 * 10**15
    caplog.clear()
    plan = plan_distill(config.model_copy(update={"gpu_memory": 6.05}))
    assert plan["options"] == ["--gradient-checkpointing", "--lora-rank 16", f"--micro-batch-tokens {5 * 128}"]
    assert [line.split("|")[1:] for line in caplog.messages if line.startswith("| alone")] == [
        [" alone     ", " all      ", " kept           ", "      16.4 GB ", "            - ", "    does not fit ", ""],
        [" alone     ", " all      ", " computed again ", "      16.4 GB ", "            - ", "    does not fit ", ""],
        [" alone     ", " adapters ", " kept           ", "       4.5 GB ", "      10.5 GB ", "    does not fit ", ""],
        [" alone     ", " adapters ", " computed again ", "       4.5 GB ", "       5.5 GB ", "               5 ", ""],
    ]


def test_ways_that_spread_the_same_work_otherwise_are_told_too(config, made_up):
    plan = plan_distill(config.model_copy(update={"gpus": 4, "gpu_memory": 17}))
    told = [(each["way"]["strategy"], each["way"]["checkpointing"], each["rows"]) for each in plan["ways"]]
    assert told == [("data parallel", False, 0), ("zero2", False, 1), ("zero3", False, 1)]
    assert plan["options"] == ["--deepspeed zero2", "--micro-batch-tokens 128"]
    assert plan["hours"] == pytest.approx(plan["operations"] / (4 * 200e12 * 0.35) / 3600)


def test_a_context_is_long_enough_for_prompt_and_response_together(config, made_up):
    assert plan_distill(config.model_copy(update={"prompt_tokens": 504}))["tokens"] == 1000 * 512
    with pytest.raises(BadOption, match="^--prompt-tokens: .* 512 "):
        plan_distill(config.model_copy(update={"prompt_tokens": 505}))
    with pytest.raises(NoRoom, match=f"^{config.model}: .* 2 GPUs of 2.5 GB, .* GPUs"):
        plan_distill(config.model_copy(update={"gpu_memory": 2.5, "gpus": 2}))


def test_on_a_cpu_memory_is_the_machine_s_and_arithmetic_float32(config, made_up, monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    monkeypatch.setattr("posgap.verbs.plan_distill.available_bytes", lambda: 60 * GB)
    monkeypatch.setattr("posgap.verbs.plan_distill.measured_tflops", lambda: 0.25)
    on_cpu = config.model_copy(update={"gpus": 0, "gpu_memory": 0.0, "gpu_tflops": 0.0})
    plan = plan_distill(on_cpu)
    # Beside parameters, gradients, means and head: a checkpoint on its way to the disk, and python.
    (way,) = plan["ways"]
    assert way["way"]["strategy"] == "cpu" and way["standing"] == pytest.approx((16 + 0.4 + 20 + 0.4) * GB)
    assert plan["options"] == [f"--micro-batch-tokens {way['rows'] * 128}"] and 0 < way["rows"] < 32
    assert plan["hours"] == pytest.approx(plan["operations"] / (0.25e12 * 0.7) / 3600)
    assert "of 0.25 TFLOP/s; " in caplog.text
    # The trained model and its head, the base, which is stored in float32, and what is read back.
    assert plan["export_gb"] == pytest.approx(0.4 + 4.4 + 4)
    asked = []
    need(work_of(on_cpu, gpu_memory=60), Way("cpu", False, 0), sized, lambda s: asked.append(s) or 1)
    assert {shape.arithmetic for shape in asked} == {"float32"}
    with pytest.raises(NoRoom, match=" 4 GB"):
        plan_distill(on_cpu.model_copy(update={"gpu_memory": 4}))
    monkeypatch.setattr("posgap.verbs.plan_distill.available_bytes", lambda: math.inf)
    with pytest.raises(BadOption, match="^--gpu-memory: "):
        plan_distill(on_cpu)


@pytest.mark.parametrize(
    ("way", "size", "stored", "gigabytes"),
    [
        (Way("alone", False, 0), OF_ALL, 2, 6),  # in bfloat16, beside what is read back
        (Way("alone", False, 0), OF_ALL, 4, 4),
        (Way("cpu", False, 0), OF_ALL, 2, 4.4 + 6),
        (Way("zero3", False, 16), OF_ADAPTERS, 2, 6),
    ],
    ids=str,
)
def test_what_writing_the_model_takes(way, size, stored, gigabytes):
    assert export_bytes(way, size, stored) == pytest.approx((0.4 + gigabytes) * GB)


def test_this_machine_s_speed_is_that_of_its_quickest_product():
    assert 1e-6 < measured_tflops(64, 0.01) < 1e3


def test_a_rate_that_cannot_move_the_model_is_told_before_it_trains():
    """The paper's run is the measure; 19 updates at 3e-5 changed no answer of SmolLM2's."""
    wide = LlamaConfig(hidden_size=4096, initializer_range=0.02)
    papers = Movement.estimate(wide, 94, Schedule(3e-6).reach(94))
    assert papers.of_the_paper == pytest.approx(1) and papers.bfloat16_steps == pytest.approx(1.425e-4 * 2**13)
    seen = Movement.estimate(LlamaConfig(hidden_size=576, initializer_range=0.02), 19, Schedule(3e-5).reach(19))
    assert seen.reach == pytest.approx(3e-4) and seen.of_the_paper == pytest.approx(0.79, abs=0.01)
    assert "too few or too small to change answers" in seen.warning()
    assert not Movement(94, 1e-3, 0.02, 576).warning()
    assert "too small for weights in bfloat16" in Movement(1, 3e-5, 0.02, 4096).warning()


def test_the_default_rate_is_the_papers_at_its_size_and_higher_below():
    assert default_learning_rate(7_000_000_000) == 3e-6
    assert default_learning_rate(135_000_000) == 3e-5 and default_learning_rate(100_000) == 2e-3
    assert default_learning_rate(7_000_000_000, adapters=True) == 3e-5
    rates = [default_learning_rate(10**digits) for digits in range(5, 12)]
    assert rates == sorted(rates, reverse=True)


def test_a_long_run_that_cannot_move_the_model_is_wasted():
    demo = LlamaConfig(hidden_size=64, initializer_range=0.05)
    assert Movement.estimate(demo, 312, Schedule(3e-6).reach(312)).is_wasted()
    assert not Movement.estimate(demo, 312, Schedule(2e-3).reach(312)).is_wasted()
    assert not Movement.estimate(demo, 12, Schedule(3e-6).reach(12)).is_wasted()  # a trial
