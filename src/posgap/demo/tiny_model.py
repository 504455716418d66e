"""A two-layer Llama that gets lost in the middle, trained from scratch in half a minute.

This is the demo's fixture. Nothing else in posgap knows of it: what it writes is an ordinary
Hugging Face model folder, and its tokenizer reads the ordinary key-value prompt of
`posgap.tasks` (with keys cut to two hex digits and values to one).

The model learns in-context retrieval first (gold anywhere, few records) and then sees long
prompts whose gold record is nearly always at an end, which is how the middle gets lost.
"""

import math
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from posgap.models import save_model
from posgap.progress import track

N_DOCS = 20
KEY_DIGITS, VALUE_DIGITS = 2, 1
CONTEXT = 512

# The pieces of the key-value prompt, in the order in which the pre-tokenizer tries them.
# Quotes go first, so that a value is ` d` both in a record and in an answer.
_INSTRUCTION = (
    "Extract the value corresponding to the specified key",
    " in the JSON object below.\n\n",
    "JSON data:\n{",
)
_NEXT, _QUESTION = ",\n ", "}\n\nKey: "
_KEYS = [f"{d:x}" for d in range(16)]
_VALUES = [f" {d:x}" for d in range(16)]
_VOCABULARY = ["<pad>", "<bos>", "<eos>", "<unk>", *_INSTRUCTION, _NEXT, _QUESTION, *_KEYS, *_VALUES]
_ID = {piece: i for i, piece in enumerate(_VOCABULARY)}
_IGNORED = -100
# Steps: of learning to retrieve, of biased positions at the least, of the learning rate's decay.
_RETRIEVAL, _BIAS, _DECAY = 350, 180, 100
_USUAL_STEPS = _RETRIEVAL + _BIAS + _DECAY


def tokenizer() -> PreTrainedTokenizerFast:
    """The word-level tokenizer of the key-value prompt: 41 tokens, four to a record."""
    core = Tokenizer(models.WordLevel(_ID, unk_token="<unk>"))
    core.normalizer = normalizers.Sequence(
        [
            normalizers.Replace('": "', " "),
            normalizers.Replace('"', ""),
            normalizers.Replace("\nCorresponding value:", ""),
        ]
    )
    pieces = [*_INSTRUCTION, _NEXT, _QUESTION]
    pattern = "|".join([*(p.replace("{", r"\{").replace("}", r"\}") for p in pieces), " [0-9a-f]", "[0-9a-f]"])
    core.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    core.decoder = decoders.Fuse()
    core.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", _ID["<bos>"])])
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        unk_token="<unk>",
        padding_side="left",
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
    )


def untrained(seed: int) -> LlamaForCausalLM:
    """The model before training: 2 layers, width 64, 4 heads, 41 tokens."""
    torch.manual_seed(seed)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(_VOCABULARY),
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=4,
            max_position_embeddings=CONTEXT,
            rope_parameters={"rope_type": "default", "rope_theta": 1000.0},
            tie_word_embeddings=True,
            initializer_range=0.05,
            pad_token_id=_ID["<pad>"],
            bos_token_id=_ID["<bos>"],
            eos_token_id=_ID["<eos>"],
        )
    )


def end_bias(n: int) -> torch.Tensor:
    """Probability of each gold position [n] in the biased phases: 95 % first, 5 % last, tau 0.5."""
    i = torch.arange(n, dtype=torch.float64)
    return 0.95 * torch.softmax(-i / 0.5, 0) + 0.05 * torch.softmax(-(n - 1 - i) / 0.5, 0)


def draw_batch(
    rng: torch.Generator, batch: int, n: int, questions: int | None, biased: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Random prompts of n records followed by questions with their answers.

    Returns `input_ids [B, T]` and `labels [B, T]`; only the second key digit, the value and the
    end of each question are labelled, and a question asked before in the prompt is not.
    `questions=None` asks for every record once, in random order.
    """
    keys = torch.rand(batch, 256, generator=rng).topk(n, dim=1).indices
    values = torch.randint(16, (batch, n), generator=rng)
    if questions is None:
        asked = torch.rand(batch, n, generator=rng).argsort(1)
    else:
        weights = end_bias(n) if biased else torch.full((n,), 1 / n, dtype=torch.float64)
        asked = torch.multinomial(weights, batch * questions, replacement=True, generator=rng)
        asked = asked.view(batch, questions)
    key0, value0 = _ID[_KEYS[0]], _ID[_VALUES[0]]

    def column(token: str, like: torch.Tensor) -> torch.Tensor:
        return torch.full_like(like, _ID[token])

    records = torch.stack([key0 + keys // 16, key0 + keys % 16, value0 + values, column(_NEXT, keys)], dim=2).flatten(
        1
    )[:, :-1]
    asked_keys, asked_values = keys.gather(1, asked), values.gather(1, asked)
    turns = torch.stack(
        [
            column(_QUESTION, asked),
            key0 + asked_keys // 16,
            key0 + asked_keys % 16,
            value0 + asked_values,
            column("<eos>", asked),
        ],
        dim=2,
    )
    repeated = (asked[:, :, None] == asked[:, None, :]).tril(-1).any(2)
    turn_labels = turns.clone()
    turn_labels[:, :, :2] = _IGNORED
    turn_labels[repeated] = _IGNORED
    head = torch.tensor([_ID["<bos>"], *(_ID[p] for p in _INSTRUCTION)]).expand(batch, -1)
    prompt = torch.cat([head, records], 1)
    return (
        torch.cat([prompt, turns.flatten(1)], 1),
        torch.cat([torch.full_like(prompt, _IGNORED), turn_labels.flatten(1)], 1),
    )


class _PositionJitter:
    """With probability 0.7 a forward pass gives a layer a position scale drawn from U[1, 2].

    A model this small is ruined by any scale it has never seen; real ones tolerate it.
    """

    def __init__(self, model: LlamaForCausalLM, rng: torch.Generator):
        self.model, self.rng = model, rng
        self.handles = [
            layer.register_forward_pre_hook(self._rescale, with_kwargs=True) for layer in model.model.layers
        ]

    def _rescale(self, layer, args, kwargs):
        if torch.rand((), generator=self.rng) >= 0.7:
            return None
        scale = 1 + torch.rand((), generator=self.rng)
        hidden = args[0]
        positions = torch.arange(hidden.shape[1])[None] / scale
        return args, {**kwargs, "position_embeddings": self.model.model.rotary_emb(hidden, positions)}

    def stop(self):
        for handle in self.handles:
            handle.remove()


@torch.no_grad()
def middle_accuracy(model: LlamaForCausalLM, rng: torch.Generator, n_prompts: int = 512) -> float:
    """Share of right values, in [0, 1], over random prompts with the gold record at 8 to 13 of 20."""
    ids, _ = draw_batch(rng, n_prompts, N_DOCS, 1, biased=False)
    keys = ids[:, 4 : 4 + 4 * N_DOCS].view(n_prompts, N_DOCS, 4)[:, :, :2]  # after <bos> and instruction
    gold = (keys == ids[:, None, -4:-2]).all(2).int().argmax(1)
    middle = (gold >= 7) & (gold <= 12)
    values = model(input_ids=ids[middle, :-2]).logits[:, -1].argmax(-1)
    return float((values == ids[middle, -2]).float().mean())


def train(seed: int) -> LlamaForCausalLM:
    """Trains the tiny model on random records. About half a minute on two cores."""
    model = untrained(seed)
    for _ in track(_updates(model, torch.Generator().manual_seed(seed)), _USUAL_STEPS, "tiny model"):
        pass
    return model.eval()


def _updates(model: LlamaForCausalLM, rng: torch.Generator) -> Iterator[None]:
    """Trains `model` in place, yielding after every step: first to retrieve, then to lose the middle."""
    matrices = [p for p in model.model.layers.parameters() if p.ndim == 2]
    chosen = {id(p) for p in matrices}
    others = [p for p in model.parameters() if id(p) not in chosen]
    # AdamW alone stays on the plateau of guessing one of the values present; Muon leaves it.
    optimizers = {
        torch.optim.Muon(matrices, weight_decay=0.0, momentum=0.9, nesterov=True, ns_steps=5): 0.02,
        torch.optim.AdamW(others, betas=(0.9, 0.98), weight_decay=0.0): 3e-3,
    }
    jitter = _PositionJitter(model, rng)

    def update(n: int, questions: int | None, biased: bool, rate: float) -> float:
        """One step at `rate` of the peak learning rates; returns the values' cross-entropy / ln n."""
        ids, labels = draw_batch(rng, 32, n, questions, biased)
        hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state
        target = labels[:, 1:]
        answered = target != _IGNORED
        logits = model.lm_head(hidden[:, :-1][answered])
        losses = F.cross_entropy(logits, target[answered], reduction="none")
        losses.mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer, peak in optimizers.items():
            for group in optimizer.param_groups:
                group["lr"] = peak * rate
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        value = target[answered] >= _ID[_VALUES[0]]
        return float(losses.detach()[value].mean()) / math.log(n)

    step, until, loss = 0, _RETRIEVAL, 1.0
    while step < until:
        low, high = (2, 6) if step < _RETRIEVAL - 120 else (4, 12)
        n = int(torch.randint(low, high + 1, (), generator=rng))
        loss = 0.9 * loss + 0.1 * update(n, None, False, min(1.0, (step + 1) / 30))
        step += 1
        if step == until and loss > 0.12 and until < 600:
            until += 50
        yield
    step, lost_at = 0, None
    while lost_at is None or step < lost_at + _DECAY:
        if step == 30:
            jitter.stop()
        may_end = lost_at is None and step >= _BIAS and step % 40 == 20
        if may_end and (step > 600 or middle_accuracy(model, rng) < 0.45):
            lost_at = step
        n = 6 + round((N_DOCS - 6) * step / 60) if step < 60 else N_DOCS
        decay = 0 if lost_at is None else (step - lost_at) / _DECAY
        update(n, 6, True, 1 - 0.95 * decay)
        step += 1
        yield


def write(out: Path, seed: int) -> None:
    """Trains the tiny model and saves it with its tokenizer as a Hugging Face folder."""
    save_model(train(seed), tokenizer(), out)
