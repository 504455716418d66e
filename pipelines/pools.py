"""Places the steps of a pipeline on a cluster: nodes, GPUs, shared memory, secrets.

All of it is compiled in, from `ClusterConfig`, but the number of GPUs that train, which a run may choose.
"""

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import yaml
from kfp import kubernetes
from kfp.dsl import PipelineTask, pipeline_task
from kfp.dsl.pipeline_channel import PipelineChannel
from pydantic import ValidationError

from posgap.components.making import image
from posgap.foundation.errors import PosgapError, first_fault
from posgap.gating import signature
from posgap.kubeflow import training_pool
from posgap.options.cluster import AUTHORITY, KFP_TOKEN, MLFLOW_LOGIN, ClusterConfig, PoolConfig
from posgap.tracking.runs import PIPELINE_VARIABLE, WEBHOOK_VARIABLE

CLUSTER_VARIABLE = "POSGAP_CLUSTER"
# Karpenter (1.x) does not move such a pod to save nodes; it still obeys a spot interruption.
STAYS = ("karpenter.sh/do-not-disrupt", "true")
SHARED_MEMORY, SCRATCH = "/dev/shm", "/tmp"
# Retries help when a node goes away, or when storage or a server does not answer for a while.
_RETRIES = 2
_DAY = 24 * 3600
# The components that read a model, or data, by an address which can be on the hub. A TrainJob's pods have its token by
# their runtime.
_READ_FROM_HUB = {
    *("preflight", "data-version", "validate", "sweep", "champion"),
    *("teacher", "distill", "mitigate", "apply"),
}


def cluster_config() -> ClusterConfig:
    """The cluster of the YAML file that POSGAP_CLUSTER names; the file lists only differences from the defaults.

    In the step that watches, which may start a run, the variable has the differences themselves, in braces.
    """
    file = os.environ.get(CLUSTER_VARIABLE)
    if not file:
        return ClusterConfig()
    try:
        text = file if file.startswith("{") else Path(file).read_text(encoding="utf-8")
        changes = yaml.safe_load(text) or {}
        defaults = ClusterConfig().model_dump()
        if "cpu" in changes:  # all steps without GPUs run on its nodes, unless the file says otherwise
            nodes = {"nodes": changes["cpu"]["nodes"]} if "nodes" in changes["cpu"] else {}
            for name in ("small", "promote"):
                changes[name] = nodes | changes.get(name, {})
        for name in ("train", "inference", "cpu", "small", "promote"):
            if name in changes:
                changes[name] = defaults[name] | changes[name]
        return ClusterConfig(**changes)
    except ValidationError as error:
        raise PosgapError(f"{file}: {first_fault(error)}") from None
    except (OSError, yaml.YAMLError, TypeError, AttributeError) as error:
        raise PosgapError(f"{file} ({CLUSTER_VARIABLE}): not a cluster configuration: {error}") from None


@contextlib.contextmanager
def _quick_stack() -> Iterator[None]:
    """Replaces `inspect.stack` inside KFP's setters: half a second less per setting.

    Each of a hundred settings of tasks reads the whole stack with its source lines, slowly if torch and transformers
    are loaded, but uses only the caller's name.
    """

    def stack() -> list[tuple]:
        frames = (sys._getframe(1), sys._getframe(2))
        return [(frame, frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name) for frame in frames]

    with patch.object(pipeline_task, "inspect", SimpleNamespace(stack=stack)):
        yield


@dataclass(frozen=True)
class Pools:
    """Places steps on the nodes of a cluster. `gpus_train` is a number, or a parameter of the pipeline."""

    cluster: ClusterConfig
    gpus_train: Any = None

    def cpu(self, task: PipelineTask) -> PipelineTask:
        """Places a step that takes minutes and no GPU."""
        return self._place(task, self.cluster.cpu, False)

    def small(self, task: PipelineTask) -> PipelineTask:
        """Places a step that needs little memory: it reads no weights."""
        return self._place(task, self.cluster.small, False)

    def job(self, task: PipelineTask) -> PipelineTask:
        """Places a step that watches a TrainJob, for as long as training may take."""
        longest = self.cluster.train.timeout
        kubernetes.add_pod_annotation(task, *STAYS)
        return self._place(task, self.cluster.small.model_copy(update={"timeout": longest}), True)

    def inference(self, task: PipelineTask) -> PipelineTask:
        """Places a step that generates responses, or searches by generating."""
        pool = self.cluster.inference
        return self._place(task, pool.times(int(pool.accelerators)), True, pool.accelerators)

    def gate(self, task: PipelineTask) -> PipelineTask:
        """Places a gate, which has the key that signs verdicts."""
        _add_secret(task, self.cluster.signing_secret, signature.VARIABLE)
        return self._place(task, self.cluster.small, True)

    def report(self, task: PipelineTask) -> PipelineTask:
        """Places the report, the only step with the webhook's address: whoever knows it can post there."""
        _add_secret(task, self.cluster.webhook_secret, WEBHOOK_VARIABLE)
        return self.small(task)

    def promote(self, task: PipelineTask) -> PipelineTask:
        """Places a promotion, which has a log-in of its own to MLflow: it may change the registered model. If the
        champion has changed since the gate, it judges again, and signs that verdict."""
        _add_secret(task, self.cluster.signing_secret, signature.VARIABLE)
        return self._place(task, self.cluster.promote, True, login=self.cluster.promote_secret)

    def watch(self, task: PipelineTask) -> PipelineTask:
        """Places a step that tags the champion, as promotion does, and may start a run: with a token that on Kubeflow a
        PodDefault gives its pod, or from a secret."""
        kubernetes.add_pod_label(task, "access-ml-pipeline", "true")
        _add_secret(task, self.cluster.kfp_secret, KFP_TOKEN)
        defaults = ClusterConfig().model_dump()
        changes = {name: value for name, value in self.cluster.model_dump().items() if value != defaults[name]}
        if changes:
            task.set_env_variable(CLUSTER_VARIABLE, json.dumps(changes))
        return self._place(task, self.cluster.small, False, login=self.cluster.promote_secret)

    def preflight(self, task: PipelineTask) -> PipelineTask:
        """Places the step that computes training's requests, by the run's number of GPUs."""
        task.set_env_variable(training_pool.VARIABLE, self._train.model_dump_json(exclude_defaults=True))
        return self.small(task)

    @property
    def _train(self) -> PoolConfig:
        """The training pool for one GPU, but with the volumes' sizes of as many as the form offers: KFP takes no
        parameters for these. They are limits, which a step with fewer GPUs does not fill."""
        pool = self.cluster.train
        whole = pool.times(int(pool.accelerators))
        return pool.model_copy(update={"shared_memory": whole.shared_memory, "scratch": whole.scratch})

    def train(self, task: PipelineTask, cpu: PipelineChannel, memory: PipelineChannel) -> PipelineTask:
        """Places a training step, with the CPUs and the memory from `preflight`."""
        self._place(task, self._train, True, self.gpus_train)
        task.register_pipeline_channels([cpu, memory])
        return task.set_cpu_request(cpu).set_memory_request(memory).set_memory_limit(memory)

    @_quick_stack()
    def _place(
        self,
        task: PipelineTask,
        pool: PoolConfig,
        retry: bool,
        accelerators: Any = None,
        login: str = "",
    ) -> PipelineTask:
        task.set_container_image(image(_kind(task), self.cluster.registry))
        task.set_cpu_request(pool.cpu).set_memory_request(pool.memory).set_memory_limit(pool.memory)
        for label, value in pool.nodes.items():
            kubernetes.add_node_selector(task, label, value)
        if pool.timeout:
            kubernetes.set_timeout(task, pool.timeout)
        if pool.accelerator:
            _accelerate(task, pool, accelerators)
        if pool.scratch:
            kubernetes.empty_dir_mount(task, "scratch", SCRATCH, size_limit=pool.scratch)
        _environment(task, self.cluster, login)
        return task.set_retry(_RETRIES, "60s", 2.0, f"{_all_tries(pool.timeout)}s") if retry else task


def _all_tries(timeout: int) -> int:
    """Returns the seconds for all tries of a step, given the time limit of one try (0: none).

    Argo (`backoff.maxDuration`, 4.0) counts them from the creation of the first try's pod, its wait in the queue
    included, and ends the last try with them. So there is room for all tries, and for a day in the queue before each.
    """
    return (_RETRIES + 1) * (timeout + _DAY) if timeout else 30 * _DAY


def _kind(task: PipelineTask) -> str:
    """The kind of a component's image, from its name ghcr.io/posgap/posgap-KIND:VERSION."""
    return task.container_spec.image.rpartition("/posgap-")[2].partition(":")[0]


def _accelerate(task: PipelineTask, pool: PoolConfig, accelerators: Any) -> None:
    if isinstance(accelerators, PipelineChannel):
        # KFP 2.17 passes this parameter to the task, but not into the groups around the task.
        task.register_pipeline_channels([accelerators])
    task.set_accelerator_type(pool.accelerator).set_accelerator_limit(accelerators)
    kubernetes.add_toleration_json(task, pool.tolerations)
    kubernetes.add_pod_annotation(task, *STAYS)
    if pool.shared_memory:
        kubernetes.empty_dir_mount(task, "shared-memory", SHARED_MEMORY, "Memory", pool.shared_memory)
    if pool.queue:
        kubernetes.add_pod_label(task, "kueue.x-k8s.io/queue-name", pool.queue)


def _environment(task: PipelineTask, cluster: ClusterConfig, login: str) -> None:
    """Sets the user that the step runs as, and its environment; variables that the cluster lacks are left unset.

    `login` is the secret with the step's own log-in to MLflow; empty if it uses the one of all steps.
    """
    kubernetes.set_security_context(task, cluster.user, cluster.user, run_as_non_root=True)
    variables = dict(zip(cluster.variables, cluster.variables))
    kubernetes.use_config_map_as_env(task, cluster.environment, variables, optional=True)
    if cluster.mlflow_authority:
        kubernetes.use_config_map_as_volume(task, cluster.mlflow_authority, AUTHORITY, optional=True)
    for secret, keys in cluster.secrets.items():
        # Never both log-ins: Kubernetes would take the one that stands last.
        _add_secret(task, secret, *(key for key in keys if not login or key not in MLFLOW_LOGIN))
    _add_secret(task, login, *MLFLOW_LOGIN)
    if task.component_spec.name in _READ_FROM_HUB:
        _add_secret(task, cluster.hub_secret, "HF_TOKEN")
    kubernetes.use_field_path_as_env(task, PIPELINE_VARIABLE, "metadata.labels['pipeline/runid']")
    if cluster.pull_secret:
        kubernetes.set_image_pull_secrets(task, [cluster.pull_secret])


def _add_secret(task: PipelineTask, secret: str, *keys: str) -> None:
    """Gives a step these keys of a secret as environment variables, if the secret exists; none without a name."""
    if secret and keys:
        kubernetes.use_secret_as_env(task, secret, dict(zip(keys, keys)), optional=True)
