"""The mitigation pipeline with parameters for the tiny model: `posgap demo`, and CI."""

from posgap.pipelines.mitigation import mitigation

pipeline = mitigation

# A model of 100,000 parameters needs a higher learning rate and more passes than one of seven
# billion, and 200 examples cannot show a loss of under 5 points at one position.
PARAMETERS = {
    "task": "kv",
    "n_docs": 20,
    "max_new_tokens": 4,
    "epochs": 4,
    "batch_size": 16,
    "learning_rate": 1e-3,
    "warmup_steps": 5,
    "advantageous_tolerance": 5.0,
    "registered_name": "posgap-demo",
}
