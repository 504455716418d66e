"""The mitigation pipeline with parameters for the tiny model, for `posgap demo` and CI."""

from typing import Any

from posgap.pipelines.mitigation import mitigation

pipeline: Any = mitigation

# A model of 100,000 parameters needs a higher learning rate and more epochs than one of seven billion, and at that rate
# a larger weight of the anchoring loss. The gate's rules are the usual ones.
OVERRIDES = {
    "max_new_tokens": 4,
    "anchoring": 5.0,
    "epochs": 5,
    "batch_size": 80,
    "learning_rate": 2e-3,
    "warmup_steps": 5,
}
PARAMETERS: dict[str, Any] = {
    "task": "kv",
    "n_docs": 20,
    "methods": "r1",
    "inference_backend": "transformers",
    "registered_name": "posgap-demo",
    "settings": OVERRIDES,
}

# For `posgap demo --smoke`: it runs every step, and the gate lets any model through.
SMALLEST: dict[str, Any] = {
    "max_gap": 100.0,
    "registered_name": "posgap-smoke",
    "settings": OVERRIDES
    | {"epochs": 1, "k": 2, "mean_tolerance": 100.0, "advantageous_tolerance": 100.0}
    | {"min_mean": 0.0, "least_examples": 1},
}
