"""What posgap does with weights that nobody here trained: SmolLM2, as benchmarks/real_models.py gets it.

`make test-real` runs these. What they find wrong becomes a test on a tiny model, which every run has.
"""

import copy
import random
from itertools import product

import pytest
import torch

from posgap.api import library
from posgap.generation.setup import prompt_builder
from posgap.mitigations.in_force import load_model, scale_model
from posgap.models.loading import load_tokenizer, save_model
from posgap.tasks.examples import KVExample

pytestmark = pytest.mark.real
POSITIONS = ["1", "5", "10"]
LIMIT = 40


def records(number: int) -> KVExample:
    """An example of ten records whose keys and values have eight hex digits, which SmolLM2 can answer now and then."""
    rng = random.Random(number)
    pairs = [(f"{rng.getrandbits(32):08x}", f"{rng.getrandbits(32):08x}") for _ in range(10)]
    key, value = pairs[0]
    return KVExample(id=f"kv-{number}", question=key, answers=[value], key=key, value=value, records=pairs)


EXAMPLES = [records(number) for number in range(2)]


def plain_responses(model, tokenizer, prompts):
    """What `generate` answers to each prompt by itself, as text."""
    for prompt in prompts:
        ids = torch.tensor([prompt])
        output = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=LIMIT, do_sample=False)
        yield tokenizer.decode(output[0, ids.shape[1] :], skip_special_tokens=True)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_sweep_s_responses_are_those_of_plain_generate(smollm2, dtype):
    """In bfloat16 a batch rounds otherwise than one prompt alone, so that there each prompt is a batch."""
    asked = {"n_docs": 10, "positions": POSITIONS, "max_new_tokens": LIMIT, "dtype": dtype, "max_unanswered": 100}
    alone = {"batch_tokens": 1} if dtype == "bfloat16" else {}
    swept = library.sweep(str(smollm2), EXAMPLES, **asked, **alone)
    model, tokenizer = load_model(str(smollm2), dtype), load_tokenizer(str(smollm2))
    build = prompt_builder("kv", str(smollm2), LIMIT)
    prompts = [build(*asked_at) for asked_at in product(EXAMPLES, build.task.placements(10, POSITIONS))]
    assert swept.frame.response.tolist() == list(plain_responses(model, tokenizer, prompts))


def test_a_gguf_file_is_swept_as_its_folder(smollm2):
    asked = {"n_docs": 10, "positions": ["1"], "max_new_tokens": 10, "max_unanswered": 100}
    by_folder = library.sweep(str(smollm2), EXAMPLES, **asked)
    by_file = library.sweep(str(smollm2.with_suffix(".gguf")), EXAMPLES, **asked)
    assert by_file.frame.response.tolist() == by_folder.frame.response.tolist()
    assert by_file.figures.model.endswith("smollm2.gguf")


@torch.inference_mode()
def test_factors_for_each_layer_outlive_saving(smollm2, tmp_path):
    model, tokenizer = load_model(str(smollm2), "float32"), load_tokenizer(str(smollm2))
    ids = torch.tensor([tokenizer("The value that belongs to the key is in the middle of the list.")["input_ids"]])
    unscaled = model(ids).logits
    scaled = scale_model(copy.deepcopy(model), torch.linspace(1.5, 1.0, model.config.num_hidden_layers).tolist())
    expected = scaled(ids).logits
    save_model(scaled, tokenizer, tmp_path / "scaled")
    again = load_model(str(tmp_path / "scaled"), "float32")(ids).logits
    assert (expected - unscaled).abs().max() > 0.1
    torch.testing.assert_close(again, expected)
