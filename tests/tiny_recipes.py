"""The tiny models of benchmarks and tests beside the demo's, each by a recipe.

    python tests/tiny_recipes.py deep --seed 0

makes the model of a recipe of `RECIPES`, once, keeps it in posgap's cache and prints its folder.
"""

import argparse
import contextlib
import hashlib
import sys
from pathlib import Path

import torch

from posgap.demo import tiny_model, tiny_training
from posgap.demo.tiny_model import QUICK, STANDARD, Recipe, base_model
from posgap.foundation import files
from posgap.foundation.locations import cache_folder

# Trained so briefly that it has little capacity to spare: gains at one position cost accuracy at another, unless the
# anchoring loss holds it.
CAPACITY_LIMITED = Recipe(
    retrieval=200,
    records=((0, 2, 6), (130, 4, 12)),
    threshold=0.25,
    ramp=125,
    bias=200,
    first=0.93,
    tau=0.7,
    jitter="never",
)
# Tolerates position scales to the end, as large models do: the model to try scaling on.
SCALABLE = Recipe(lost=1.0, jitter="always")
# Eight layers, which stay three times as long on the plateau. A tenth of the biased questions about any record keeps
# the ability to retrieve; without it only the ends are left.
DEEP = Recipe(
    layers=8,
    retrieval=600,
    most=1200,
    patience=1000,
    records=((0, 2, 6), (230, 4, 12), (450, 4, 20)),
    threshold=0.1,
    ramp=0,
    bias=20,
    decay=180,
    lost=1.0,
    uniform=0.1,
    jitter="always",
)
# OLMo's layer normalisation has no parameters and takes the mean away, so that a number added to all of the model's
# weights changes nothing but how finely bfloat16 stores them.
OLMO = Recipe(family="olmo")

RECIPES = {
    "standard": STANDARD,
    "capacity-limited": CAPACITY_LIMITED,
    "scalable": SCALABLE,
    "deep": DEEP,
    "olmo": OLMO,
    "quick": QUICK,
}


def kept(name: str, seed: int) -> Path:
    """The folder of a recipe's model in posgap's cache, trained there unless this code has trained it before.

    Which code that was is part of the folder's name: these modules, what the recipe says, and the version of torch. On
    one machine the same code gives the same parameters, bit for bit.
    """
    sources = b"".join(Path(module).read_bytes() for module in (tiny_model.__file__, tiny_training.__file__))
    code = hashlib.sha256(sources + f"{RECIPES[name]} {torch.__version__}".encode()).hexdigest()[:8]
    folder = cache_folder() / "tiny-models" / f"{name}-{seed}-{code}"
    if not folder.is_dir():
        try:
            with files.atomic(folder) as partial:
                base_model(partial, seed, RECIPES[name])
        except OSError:
            if not folder.is_dir():  # else another process has made the same model meanwhile
                raise
    return folder / "model"


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("recipe", choices=RECIPES)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(words)
    with contextlib.redirect_stdout(sys.stderr):  # libraries say things as they are imported
        folder = kept(options.recipe, options.seed)
    print(folder)


if __name__ == "__main__":
    main()
