"""Tries the export of trained models over families, whole and with adapters: a table of docs/families.md.

    python benchmarks/exports.py                     prints the table
    python benchmarks/exports.py --write             writes it for docs/families.md
    python benchmarks/exports.py llama mixtral       only these

Each family is a model of a few layers with random weights, stored in float32. All its weights, or its adapters, are
moved at random as training would; what is written is read back, its tensors' names are compared with the base's, and
its logits with those of the model in training.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import torch
import transformers
from accelerate import Accelerator
from families import ROWS, build
from report import write_table
from safetensors import safe_open

from posgap.demo import tiny_model
from posgap.distillation.config import DistillConfig
from posgap.distillation.export import Trained, export
from posgap.distillation.lora import add_adapters
from posgap.foundation.errors import PosgapError
from posgap.mitigations.in_force import load_model
from posgap.models.loading import save_model

_NAMES = (
    "llama gpt2 mixtral qwen3 qwen3_moe gemma2 phi3 bloom falcon gpt_neox cohere granite "
    "granitemoe gpt_oss deepseek_v3 llama4_text olmoe opt falcon_h1 mamba"
)
FAMILIES = _NAMES.split()
IDS = torch.arange(3, 35)[None]


def exported(base: Path, out: Path, rank: int) -> str:
    """How a model of the folder `base` is exported, trained whole or (`rank` above 0) by adapters."""
    try:
        model = load_model(str(base), "float32")
        if rank:
            add_adapters(model, rank)
        draw = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.requires_grad:
                    parameter += 0.05 * torch.randn(parameter.shape, generator=draw)
        config = DistillConfig(
            model=str(base),
            examples=base,
            responses=base,
            out=out,
            lora_rank=rank,
            export_dtype="float32",
        )
        out.mkdir()
        export(config, Trained.of(model, IDS, Accelerator(cpu=True)), tiny_model.tokenizer(), out)
    except PosgapError as error:
        return str(error)
    same = names(base) == names(out)
    return "equal" if same else f"equal, names differ: {sorted(names(base) ^ names(out))[0]}"


def names(folder: Path) -> set[str]:
    """The names of the tensors in a folder's files."""
    of_files = set()
    for file in folder.glob("*.safetensors"):
        with safe_open(file, framework="pt") as tensors:
            of_files |= set(tensors.keys())
    return of_files


def tried(family: str) -> tuple[str, str, str]:
    """A row of the table: the family, and its export whole and with adapters."""
    name, settings = ROWS[family]
    with tempfile.TemporaryDirectory() as place:
        base = Path(place) / "base"
        save_model(build(name, **settings), tiny_model.tokenizer(), base)
        return family, *(exported(base, Path(place) / f"rank-{rank}", rank) for rank in (0, 2))


def table(rows: list[tuple[str, str, str]]) -> str:
    """The table of docs/families.md."""
    lines = [f"| {family} | {whole} | {adapters} |" for family, whole, adapters in rows]
    about = f"Written by `benchmarks/exports.py --write` with transformers {transformers.__version__}."
    return "\n".join(
        [about, "", "| family | all weights trained | adapters trained, merged |", "|---|---|---|", *lines]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("families", nargs="*", metavar="family", help="only these")
    parser.add_argument("--write", action="store_true", help="write the table")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    rows = []
    for family in arguments.families or FAMILIES:
        rows.append(tried(family))
        print(rows[-1], file=sys.stderr, flush=True)
    if arguments.write:
        write_table("exports", table(rows))
    else:
        print(table(rows))


if __name__ == "__main__":
    main()
