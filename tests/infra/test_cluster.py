"""The overlay `local` on a node of Kubernetes whose network rules are enforced: `make cluster`."""

import cluster
import pytest
from api_server import documented, pod
from test_kubernetes_network import RUN

from posgap.components.making import image

pytestmark = pytest.mark.full
LOG = """
import mlflow
mlflow.set_experiment("posgap")
with mlflow.start_run(run_name="backed up"):
    mlflow.log_metric("gap", 3)
    mlflow.log_text("written by a pod", "note.txt")
"""
READ = """
import mlflow
named = {"experiment_names": ["posgap"], "filter_string": "attributes.run_name = 'backed up'"}
for run in mlflow.search_runs(**named, output_format="list"):
    note = mlflow.artifacts.load_text(run.info.artifact_uri + "/note.txt")
    print(run.info.run_id, run.data.metrics["gap"], note)
"""
LINE = " 3.0 written by a pod\n"


def in_a_step(node, script: str) -> str:
    """What a script prints in a pod of a run."""
    step = pod(
        "step",
        RUN,
        image=image("mlflow"),
        command=["python", "-c", script],
        envFrom=[{"configMapRef": {"name": "posgap-env"}}, {"secretRef": {"name": "posgap-mlflow"}}],
        env=[{"name": "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "value": "false"}],
        resources={"requests": {"cpu": "100m", "memory": "512Mi"}},
    )
    step["spec"]["serviceAccountName"] = "posgap-pipeline"
    return cluster.output(node, step)


def test_a_restore_brings_back_what_was_there_at_the_backup(node):
    backup, restore = documented("Backups")[:2]
    # In a cluster that is kept.
    node.kubectl("-n", "posgap", "delete", "job", "before-upgrade", "restore", "--ignore-not-found")
    in_a_step(node, LOG)
    before = in_a_step(node, READ)
    node.shell(backup)
    in_a_step(node, LOG)
    assert in_a_step(node, READ).count(LINE) == before.count(LINE) + 1 > 1
    # Of two ways to restore the first, of the newest backup.
    lines = restore.replace("\\\n", "").splitlines()
    node.shell("\n".join(line for line in lines if "--dry-run=client" not in line))
    node.kubectl("-n", "posgap", "rollout", "status", "deployment/mlflow", "--timeout=5m")
    assert in_a_step(node, READ) == before
