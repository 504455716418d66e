"""Recipes: every value has a source, and what a user gives replaces it."""

from dataclasses import fields
from pathlib import Path

import pytest
from pydantic import ValidationError

from posgap.cli.mlproject import mlproject
from posgap.distillation.config import DistillConfig
from posgap.distillation.engine import Optimization
from posgap.distillation.recipes import RECIPES

DOCS = Path(__file__).parents[1] / "docs"
EMPTY = {name for name, field in DistillConfig.parameters().items() if field.default in (None, "")}
DECIDED = EMPTY - {"deepspeed", "system", "template"}


def config(**values) -> DistillConfig:
    return DistillConfig(examples="e", responses="r", model="m", out="o", **values)


@pytest.mark.parametrize("recipe", list(RECIPES), ids=RECIPES.names())
def test_a_recipe_decides_what_is_left_empty_and_nothing_else(recipe):
    assert set(recipe.settings) == DECIDED and all(setting.source for setting in recipe.settings.values())
    empty = dict.fromkeys(DECIDED, "")  # as MLproject passes what is not given
    for made in (config(recipe=recipe.name), config(recipe=recipe.name, **empty)):
        assert {name: getattr(made, name) for name in DECIDED} == recipe.values()
    for name, value in {"k": 7, "learning_rate": "1e-4", "anchoring": 0, "weight_decay": 0, "mix": "prompts"}.items():
        made = config(recipe=recipe.name, **{name: value})
        assert getattr(made, name) == (value if isinstance(value, int) or name == "mix" else float(value))
        assert {other: getattr(made, other) for other in DECIDED - {name}} == {
            other: value for other, value in recipe.values().items() if other != name
        }


def test_the_papers_recipe_is_the_default_and_the_authors_differs():
    assert config().recipe == "pos2distill" and config().learning_rate == 3e-6
    paper, authors = (RECIPES[name].values() for name in ("pos2distill", "pos2distill-authors"))
    assert {name for name in paper if paper[name] != authors[name]} == {
        "epochs", "mix", "distractors", "schedule", "warmup_steps", "final_rate", "adam_beta2", "weight_decay",
        "alignment",
    }  # fmt: skip
    assert 'batch_size: {type: string, default: ""}' in mlproject()


def test_an_unknown_recipe_or_an_impossible_value_is_refused_by_its_name():
    with pytest.raises(ValidationError, match="unknown recipe 'mine': choose pos2distill or pos2distill-authors"):
        config(recipe="mine")
    with pytest.raises(ValidationError, match="batch_size"):
        config(batch_size="1.5")
    with pytest.raises(ValidationError, match="final_rate"):
        config(final_rate=1.5)


def test_the_docs_have_every_value_and_its_source(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS))
    from hooks import table

    shown = table("recipes").splitlines()[2:]
    paper, authors = (RECIPES[name].settings for name in ("pos2distill", "pos2distill-authors"))
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in shown]
    assert cells == [[f"`{name}`", *map(str, paper[name]), *map(str, authors[name])] for name in paper]


def test_what_is_given_comes_before_the_recipe():
    paths = {"examples": "e", "responses": "r", "model": "m", "out": "o"}
    given = {"adam_beta1": 0.8, "adam_beta2": 0.9, "adam_epsilon": 1e-7}
    config = DistillConfig(**paths, **given)
    assert {name: getattr(config, name) for name in given} == given
    assert config.learning_rate == DistillConfig(**paths).learning_rate
    halfway = {"linear": 0.5 + 0.5 * 0.2, "cosine": 0.5 + 0.5 * 0.2, "constant": 1.0}
    for schedule, rate in halfway.items():
        asked = DistillConfig(**paths, schedule=schedule, final_rate=0.2, warmup_steps=0)
        course = Optimization(**{field.name: getattr(asked, field.name) for field in fields(Optimization)})
        assert course.rate(50, 100) == pytest.approx(rate)
        assert course.rate(25, 100) == pytest.approx(
            {"linear": 0.8, "cosine": 0.883, "constant": 1}[schedule], abs=1e-3
        )
