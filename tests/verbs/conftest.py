"""Fixtures of tests/verbs."""

import shutil
from pathlib import Path

import pytest
from examples import kv_example
from written_sweeps import LAX, gated, promoted

from posgap.data.reading import write_examples
from posgap.demo import tiny_model
from posgap.models.loading import save_model
from posgap.options.sweep import SweepConfig
from posgap.storage.lineage import write_training_examples
from posgap.verbs.sweep import sweep_model


@pytest.fixture
def champion(mlflow_store, registry_with_champion) -> Path:
    """A model that is nearly always right, which is the champion of `tiny`; the folder of its sweep."""
    shutil.copy(registry_with_champion / "mlflow.db", mlflow_store)
    return registry_with_champion / "sweep-good"


@pytest.fixture
def real(tmp_path):
    """Sweeps of real models: a function of a name, a seed and options, that gives model and sweep."""
    write_examples(tmp_path / "old.jsonl", [kv_example(i) for i in range(4)])
    write_examples(tmp_path / "new.jsonl", [kv_example(50 + i) for i in range(4)])

    def made(name, seed, examples="old", **options):
        model = tmp_path / f"model-{name}"
        if not model.is_dir():
            save_model(tiny_model.untrained(seed), tiny_model.tokenizer(), model)
            write_training_examples(model, [f"{seed:016x}"])
        options = {"n_docs": 4, "max_new_tokens": 2, "label": name} | options
        out = tmp_path / f"{name}-{examples}"
        return model, sweep_model(
            SweepConfig(examples=tmp_path / f"{examples}.jsonl", model=str(model), out=out, **options)
        )

    return made


@pytest.fixture
def real_champion(tmp_path, real, mlflow_store):
    model, swept = real("champion", 0)
    promoted(tmp_path, "champion", model, swept, gated(tmp_path, "champion", swept, swept, name="tiny", **LAX))
    return model, swept
