"""KFP pipelines."""

# What most steps import: a local run does it once for all of them. Here, since this module imports nothing of posgap.
LIBRARIES = (
    "kfp.dsl.executor_main",
    "mlflow.pyfunc",
    "mlflow.store.tracking.rest_store",
    "mlflow.store.tracking.sqlalchemy_store",
    "great_expectations.expectations",
    "transformers.models.llama.modeling_llama",
    "matplotlib.pyplot",
    "scipy.stats",
)
