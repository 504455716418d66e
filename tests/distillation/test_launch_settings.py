"""What a launcher and a DeepSpeed file ask of training: filled in, or refused in a line."""

import json

import pytest

from posgap.distillation import processes
from posgap.distillation.processes import accelerator, deepspeed_settings, tell_locked_builds
from posgap.foundation.errors import PosgapError
from posgap.foundation.interruption import Termination

# The file in transformers' documentation, shortened.
COMMON = {
    "fp16": {"enabled": "auto", "loss_scale": 0},
    "bf16": {"enabled": "auto"},
    "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": "auto", "warmup_max_lr": "auto"}},
    "zero_optimization": {
        "stage": 3,
        "offload_optimizer": {"device": "cpu", "pin_memory": True},
        "reduce_bucket_size": "auto",
        "stage3_prefetch_bucket_size": "auto",
        "stage3_param_persistence_threshold": "auto",
        "stage3_gather_16bit_weights_on_model_save": True,
    },
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "wall_clock_breakdown": False,
}


@pytest.fixture
def written(tmp_path):
    def write(**more):
        (tmp_path / "ds.json").write_text(json.dumps(COMMON | more))
        return str(tmp_path / "ds.json")

    return write


@pytest.mark.parametrize("mixed", [False, True])
def test_what_a_common_file_leaves_open_is_filled(written, mixed):
    assert deepspeed_settings(written(train_batch_size=64), mixed) == {
        "bf16": {"enabled": mixed},
        "zero_optimization": {
            "stage": 3,
            "offload_optimizer": {"device": "cpu", "pin_memory": True},
            "stage3_gather_16bit_weights_on_model_save": True,
        },
        "zero_allow_untested_optimizer": True,
        "gradient_accumulation_steps": 1,
        "train_micro_batch_size_per_gpu": 1,
        "wall_clock_breakdown": False,
    }
    for ours in ("zero2", "zero3"):
        assert deepspeed_settings(ours, mixed)["bf16"] == {"enabled": mixed}


@pytest.mark.parametrize(
    ("more", "line"),
    [
        ({"gradient_accumulation_steps": 4}, 'gradient_accumulation_steps .* 4, .* "auto"'),
        ({"fp16": {"enabled": True}}, 'fp16 .*--dtype .bfloat16. .* "auto"'),
        ({"bf16": {"enabled": False}}, "bf16 .*--dtype"),
        ({"optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}}, ".* optimizer .*--learning-rate "),
        ({"scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": 0}}}, ".* scheduler .*--warmup-steps"),
        ({"zero_optimization": 3}, "zero_optimization "),
    ],
)
def test_a_file_that_says_otherwise_is_refused(written, more, line):
    with pytest.raises(PosgapError, match=f"^deepspeed: .*ds.json: {line}"):
        deepspeed_settings(written(**more), True)


@pytest.mark.parametrize(
    ("variable", "value", "line"),
    [
        ("ACCELERATE_USE_FSDP", "true", "FSDP"),
        ("ACCELERATE_USE_MEGATRON_LM", "1", "Megatron-LM"),
        ("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "4", "4"),
    ],
)
def test_a_launcher_that_asks_for_what_would_not_be_is_refused(variable, value, line, monkeypatch):
    monkeypatch.setenv(variable, value)
    with pytest.raises(PosgapError, match=f"^{variable}: .* {line},"):
        accelerator()


def test_a_lock_that_a_killed_build_left_is_named(tmp_path, monkeypatch, caplog):
    """PyTorch waits for it for ever, and says nothing."""
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    lock = tmp_path / "deepspeed_shm_comm" / "lock"
    lock.parent.mkdir()
    for there in (True, False):
        caplog.clear()
        lock.touch() if there else lock.unlink()
        tell_locked_builds()
        assert (str(lock) in caplog.text) == there


@pytest.mark.parametrize(
    ("words", "waits"), [("[gloo/pair.cc:553] Connection closed by peer [10.0.0.1]:4763", True), ("no kernel", False)]
)
def test_a_process_that_lost_its_peer_ends_when_it_is_stopped(monkeypatch, words, waits):
    termination, waited = Termination(), []

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        termination.requested = len(waited) == 3

    monkeypatch.setattr(processes.time, "sleep", sleep)
    with pytest.raises(RuntimeError, match=words[-4:]), processes.ending_after_its_peer(termination):
        raise RuntimeError(words)
    assert len(waited) == (3 if waits else 0)


def test_a_process_that_lost_its_peer_and_is_not_stopped_ends_all_the_same(monkeypatch):
    monkeypatch.setattr(processes, "PEER_SECONDS", 0.2)
    with pytest.raises(RuntimeError, match="reset"), processes.ending_after_its_peer(Termination()):
        raise RuntimeError("Connection reset by peer")
