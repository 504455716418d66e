"""Tries every mitigation of a model in every family that benchmarks/families.py builds: a table of docs/families.md.

    python benchmarks/mitigation_families.py                     prints the table
    python benchmarks/mitigation_families.py --write             writes it for docs/families.md
    python benchmarks/mitigation_families.py llama gemma2        only these families
    python benchmarks/mitigation_families.py --only ntk lpes     only these mitigations

Of each pair it asks: do settings that mean nothing change nothing, to the bit; do settings that mean something change
something; does a prompt with tokens after it, one at a time, give what one pass gives; are settings replaced and taken
back, to the bit; is a saved and loaded model the one in memory. Where the pair is refused: in one line, and is the
model as it was, to the bit? The models are tiny and random.
"""

import argparse
import dataclasses
import functools
import re
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path

import families
import torch
import transformers
from report import write_table
from transformers import PreTrainedModel

from posgap.foundation.errors import PosgapError
from posgap.mitigations.in_force import apply, load_model, remove
from posgap.mitigations.mitigation import ModelMitigation, Settings, TriedOn
from posgap.mitigations.registry import MITIGATIONS
from posgap.mitigations.state import in_force
from posgap.models.head_scaling import n_key_heads
from posgap.models.loading import save_model

OF_MODELS = [each for each in MITIGATIONS if isinstance(each, ModelMitigation)]
# A prompt, and a response of five tokens; with a window of 8 some of it lies outside.
LENGTH, RESPONSE = 20, 5
IDS = torch.randint(3, families.VOCABULARY - 4, (1, LENGTH + RESPONSE), generator=torch.Generator().manual_seed(5))
PROMPTS = [IDS[0, :LENGTH].tolist(), IDS[0, :LENGTH].flip(0).tolist()]
# Of the standard deviation of the logits: what rounding may make between one pass and several, unless the model without
# a mitigation has more (random weights make much of it: DeepSeek-V3 under YaRN has 2e-3, and 3e-8 in 64 bits), and
# what is no change at all.
ROUNDING, NO_CHANGE = 1e-2, 1e-5
# In words, what a cell of the table says where all is well, where settings must be given, and where something failed.
EQUAL, GIVEN, FAILED = "✓", "(✓)", "✗"
# So that there are layers of all kinds, and more than one frequency, in models so small.
SHAPES = {
    "gemma3_text": {"layer_types": ["sliding_attention", "full_attention"] * 2},
    "gpt_neox": {"hidden_size": 64},
    "stablelm": {"hidden_size": 64},
    "qwen3_next": {"head_dim": 16},
    "qwen3_5_text": {"head_dim": 16},
    "deepseek_v4": {"head_dim": 64},
}


class NoTokenizer:
    """A stand-in: a model's folder is looked at without its tokenizer."""

    def save_pretrained(self, out: Path) -> None:
        pass


@dataclasses.dataclass
class Cell:
    """What was seen of a mitigation in a family: what failed, or why it was refused; neither where all is well.
    `given`: the mitigation found no settings to try by itself, so that some were made up."""

    mitigation: str
    failed: list[str] = dataclasses.field(default_factory=list)
    refused: str = ""
    given: bool = False

    def reason(self) -> str:
        """Why it was refused, without what only this family or this mitigation is called."""
        reason = re.sub(r"^\S+: ", "", self.refused).removeprefix(f"{self.mitigation}: ")
        reason = re.sub(r" \([a-z0-9_, ]+\)", "", reason)
        reason = re.sub(r"\b[A-Z]\w+(?=Attention |Layer |Block )", "", reason)
        return re.sub(r"^(Attention|DecoderLayer|Block|EncoderLayer|Layer) ", "its layer ", reason)


@torch.inference_mode()
def logits(model: PreTrainedModel, ids: torch.Tensor = IDS) -> torch.Tensor:
    return model(input_ids=ids, **_uncached(model)).logits


def _uncached(model: PreTrainedModel) -> dict[str, bool]:
    return {} if "rwkv" in type(model).__name__.lower() else {"use_cache": False}


@torch.inference_mode()
def decoded(model: PreTrainedModel) -> torch.Tensor:
    """The logits of the response's tokens: the prompt is read, then one token after the other, as `generate` does."""
    seen: dict = {}
    rows = []
    for end in range(LENGTH, LENGTH + RESPONSE):
        given = model.prepare_inputs_for_generation(
            IDS[:, :end],
            next_sequence_length=None if not seen else 1,
            is_first_iteration=not seen,
            attention_mask=torch.ones(1, end, dtype=torch.long),
            use_cache=True,
            **seen,
        )
        out = model(**given, return_dict=True)
        seen = {name: out[name] for name in ("past_key_values", "cache_params", "state") if name in out}
        rows.append(out.logits[:, -1:])
    return torch.cat(rows, dim=1)


def away(one: torch.Tensor, other: torch.Tensor) -> float:
    """The largest difference, in standard deviations of the second."""
    return float((one - other).abs().max() / other.std())


def loaded(model: PreTrainedModel) -> PreTrainedModel:
    with tempfile.TemporaryDirectory() as folder:
        save_model(model, NoTokenizer(), Path(folder))
        return load_model(folder, "float32")


class Family:
    """A family's model, and what it computes without any mitigation."""

    def __init__(self, name: str):
        family, settings = families.ROWS[name]
        self.build: Callable[[], PreTrainedModel] = lambda: families.build(family, **(settings | SHAPES.get(name, {})))
        model = self.build()
        self.own = logits(model)
        self.config = model.config.to_dict()

    @functools.cached_property
    def rounding(self) -> float:
        """What may lie between one pass and several."""
        return max(ROUNDING, 5 * away(decoded(self.build()), self.own[:, LENGTH - 1 : -1]))

    @functools.cached_property
    def kept(self) -> bool:
        """Whether the model without a mitigation is itself after it was saved and loaded."""
        return torch.equal(logits(loaded(self.build())), self.own)

    def cell(self, mitigation: ModelMitigation) -> Cell:
        cell = Cell(mitigation.name)
        model = self.build()
        try:
            settings, cell.given = self.settings(model, mitigation)
            apply(model, mitigation.name, settings[-1])
        except PosgapError as refused:
            cell.refused = str(refused)
            cell.failed = [*self.untouched(model, "refused, but "), *(["refused in lines"] * ("\n" in cell.refused))]
            return cell
        remove(model, mitigation.name)
        cell.failed = list(self.untouched(model, "removed, but "))
        cell.failed += self.wrong(model, mitigation, settings)
        return cell

    def settings(self, model: PreTrainedModel, mitigation: ModelMitigation) -> tuple[list[Settings], bool]:
        try:
            return list(mitigation.tried(TriedOn(model, PROMPTS))), False
        except PosgapError:
            if mitigation.name != "ms-poe-static" or not hasattr(model.config, "num_attention_heads"):
                raise
            # Factors can be given where heads cannot be ranked.
            layers, heads = model.config.num_hidden_layers, model.config.num_attention_heads
            groups = heads // n_key_heads(model)
            rows = [[1.1 + 0.2 * (head // groups) for head in range(heads)]] * layers
            return [mitigation.settings(factors=some) for some in (rows[::-1], [row[::-1] for row in rows])], True

    def untouched(self, model: PreTrainedModel, when: str) -> Iterator[str]:
        if not torch.equal(logits(model), self.own):
            yield f"{when}other logits"
        if model.config.to_dict() != self.config or in_force(model):
            yield f"{when}another config"

    def wrong(self, model: PreTrainedModel, mitigation: ModelMitigation, settings: list[Settings]) -> Iterator[str]:
        name = mitigation.name
        if (neutral := mitigation.neutral(model.config)) is not None:
            apply(model, name, neutral)
            if not torch.equal(logits(model), self.own):
                yield f"neutral settings change logits by {away(logits(model), self.own):.1e}"
            remove(model, name)
        apply(model, name, settings[-1])
        changed = logits(model)
        if away(changed, self.own) < NO_CHANGE:
            yield "changes nothing"
        got, wanted = decoded(model), changed[:, LENGTH - 1 : -1]
        if mitigation.alone:  # what follows the prompt would have a part in what it makes of the prompt
            got, wanted = got[:, :1], logits(model, IDS[:, :LENGTH])[:, -1:]
        if (apart := away(got, wanted)) > self.rounding:
            yield f"prefill and decoding differ from one pass by {apart:.1e}"
        apply(model, name, settings[0])
        apply(model, name, settings[-1])
        if not torch.equal(logits(model), changed):
            yield "not replaced"
        remove(model, name)
        yield from self.untouched(model, "removed after that, but ")
        apply(model, name, settings[-1])
        if self.kept and not torch.equal(logits(loaded(model)), changed):
            yield f"the saved model differs by {away(logits(loaded(model)), changed):.1e}"


def tried(name: str, mitigations: list[ModelMitigation]) -> list[Cell]:
    """A row of the table."""
    family, row = Family(name), []
    for mitigation in mitigations:
        try:
            row.append(family.cell(mitigation))
        except Exception as error:
            row.append(Cell(mitigation.name, [f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"]))
    return row


def table(rows: dict[str, list[Cell]], mitigations: list[ModelMitigation]) -> str:
    """The table of docs/families.md."""
    names = [mitigation.name for mitigation in mitigations]
    reasons = [
        reason for reason, _ in Counter(c.reason() for row in rows.values() for c in row if c.refused).most_common()
    ]

    def shown(cell: Cell) -> str:
        if cell.failed:
            return FAILED
        if cell.refused:
            return str(1 + reasons.index(cell.reason()))
        return GIVEN if cell.given else EQUAL

    cells = [cell for row in rows.values() for cell in row]
    failed = [
        f"- {name}, `{cell.mitigation}`: {'; '.join(cell.failed)}"
        for name, row in rows.items()
        for cell in row
        if cell.failed
    ]
    return "\n".join(
        [
            f"Written by `benchmarks/mitigation_families.py --write` on {date.today()} with transformers "
            f"{transformers.__version__}: {len(rows)} families, tiny and random, and {len(names)} mitigations.",
            "",
            f"- {EQUAL} ({sum(shown(cell) == EQUAL for cell in cells)} of {len(cells)}): neutral settings change "
            "nothing to the bit, and others do. Prefill and single tokens equal one pass. It is replaced, and taken "
            "back to the bit. Saved and loaded it is the same.",
            f"- {GIVEN}: the same, but settings must be given.",
            "- A number: refused by the line of this number below, and the model is as it was.",
            f"- {FAILED} ({len(failed)}): something failed.",
            "",
            f"| family | {' | '.join(f'`{name}`' for name in names)} |",
            f"|---|{'---|' * len(names)}",
            *(f"| {name} | {' | '.join(map(shown, row))} |" for name, row in rows.items()),
            "",
            *(f"{number}. {reason}" for number, reason in enumerate(reasons, 1)),
            *(["", *failed] if failed else []),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("families", nargs="*", metavar="family", help="only these")
    parser.add_argument("--only", nargs="*", metavar="mitigation", help="only these mitigations")
    parser.add_argument("--write", action="store_true", help="write the table")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    warnings.simplefilter("ignore")
    mitigations = [each for each in OF_MODELS if not arguments.only or each.name in arguments.only]
    rows = {}
    for name in arguments.families or families.ROWS:
        started = time.perf_counter()
        try:
            rows[name] = tried(name, mitigations)
        except Exception as error:
            print(f"{name} FAILED: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            continue
        for cell in rows[name]:
            print(f"{name}\t{cell.mitigation}\t{'; '.join(cell.failed) or '-'}\t{cell.refused}", file=sys.stderr)
        print(f"{name}\t{time.perf_counter() - started:.1f} s", file=sys.stderr, flush=True)
    if arguments.write:
        write_table("mitigation-families", table(rows, mitigations))
    else:
        print(table(rows, mitigations))


if __name__ == "__main__":
    main()
