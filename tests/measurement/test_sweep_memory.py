"""A sweep's memory does not grow with the number of its examples."""

import os
import subprocess
import sys

import pytest
from examples import kv_example
from transformers import LlamaConfig, LlamaForCausalLM

from posgap.data.reading import write_examples
from posgap.demo import tiny_model
from posgap.models.loading import save_model


def peak(*words: object) -> int:
    """Runs `posgap sweep` in a process of its own: the most memory that it had, in KiB."""
    # Else oneDNN compiles up to 1,024 products, one for each number of rows: 100 MB that grow at first, and then stay.
    quiet = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "16", "LRU_CACHE_CAPACITY": "16", "OMP_NUM_THREADS": "1"}
    quiet["MLFLOW_TRACKING_URI"] = "http://127.0.0.1:9"  # no tracking
    process = subprocess.Popen([sys.executable, "-m", "posgap", "sweep", *map(str, words)], env=os.environ | quiet)
    _, status, usage = os.wait4(process.pid, 0)
    assert status == 0
    return usage.ru_maxrss


@pytest.mark.nightly
@pytest.mark.full
def test_four_times_the_examples_take_no_more_memory(tmp_path):
    """Some MiB of 560 are the allocator's mood; the caches of 24 more examples would be 30."""
    tokenizer = tiny_model.tokenizer()
    sizes = {"hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 4}
    config = LlamaConfig(vocab_size=len(tokenizer), max_position_embeddings=1024, **sizes)
    save_model(LlamaForCausalLM(config), tokenizer, tmp_path / "model")
    write_examples(tmp_path / "e.jsonl", [kv_example(i, 18) for i in range(32)])
    asked = ["--task=kv", f"--model={tmp_path / 'model'}", f"--examples={tmp_path / 'e.jsonl'}", "--n-docs=18"]
    asked += [
        "--positions=1,5,10",
        "--dtype=float32",
        "--max-new-tokens=8",
        "--batch-tokens=1024",
        "--max-unanswered=100",
    ]
    fewer, more = (peak(*asked, f"--limit={n}", f"--out={tmp_path / str(n)}") for n in (8, 32))
    assert more / fewer < 1.03
