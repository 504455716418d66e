"""Random Llamas with a tokenizer of words, and how they are swept."""

from pathlib import Path

import torch
from examples import kv_example
from transformers import AutoModelForCausalLM, LlamaConfig

from posgap.data.reading import write_examples
from posgap.foundation.files import read_jsonl
from posgap.generation.generator import Sampling, complete_groups
from posgap.generation.transformers import TransformersGenerator
from posgap.tasks.placements import swept_placements
from posgap.tasks.prompts import PromptBuilder
from posgap.tasks.registry import TASKS


def llama(**options):
    """A model with grouped queries; sharp enough that greedy tokens differ."""
    return random_model(LlamaConfig, **options)


def random_model(config, **options):
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    ids = {"vocab_size": 41, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    shared = sizes | ids | {"num_key_value_heads": 2, "initializer_range": 0.3, "max_position_embeddings": 512}
    # Eager attention masks with the least float32, which makes NaN of padding in float64.
    made = AutoModelForCausalLM.from_config(config(**(shared | options))).eval()
    return made if options.get("attn_implementation") == "eager" else made.double()


def groups_of(tokenizer, n_docs=8, examples=3):
    """The prompts of some examples at every position; their numbers of distractors, so their lengths, differ."""
    builder = PromptBuilder(TASKS["kv"], tokenizer, 512, 4)
    return [
        [builder.prompt(kv_example(i, n_docs), p) for p in swept_placements(n_docs - i % 3, 1)] for i in range(examples)
    ]


def answers(model, tokenizer, groups, budget, new_tokens=5, reuse=True):
    generator = TransformersGenerator(model, tokenizer, budget, reuse)
    answers = dict(complete_groups(generator, groups, Sampling(new_tokens)))
    assert sorted(answers) == list(range(len(groups)))
    return [[completion.token_ids for completion in answers[i]] for i in range(len(groups))]


def by_hand(model, tokenizer, prompt, new_tokens=5):
    ids = list(prompt.token_ids)
    while len(ids) < len(prompt.token_ids) + new_tokens and ids[-1] != tokenizer.eos_token_id:
        ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(prompt.token_ids) :]


CHAT = (
    "{{- bos_token }}{%- for m in messages %}<|{{ m['role'] }}|>{{ m['content'] | trim }}<|end|>{%- endfor %}"
    "{%- if add_generation_prompt %}<|assistant|>{%- if enable_thinking is defined and enable_thinking is false %}"
    "{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}{%- endif %}"
)


def sweep_options(folder: Path, model: Path | str, **more) -> dict:
    """A sweep of six examples of eight records, judged strictly, so that equal predictions are no matter of course."""
    write_examples(folder / "e.jsonl", [kv_example(i, 8) for i in range(6)])
    shared = {"examples": folder / "e.jsonl", "model": str(model), "n_docs": 8, "max_new_tokens": 6}
    return {**shared, "metric": "em", "dtype": "float32", "max_unanswered": 100, **more}


def predictions(folder: Path) -> list[dict]:
    rows = [row for _, row in read_jsonl(folder / "predictions.jsonl")]
    assert len({row["response"] for row in rows}) > 24  # of 48: the model is no parrot
    return rows
