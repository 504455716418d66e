"""The mitigation pipeline: measure a model's position gap, close it in one way or several, and promote the
best model that the gate admits."""

from collections.abc import Callable, Mapping
from typing import Any

from kfp import dsl

from posgap.components.table import (
    apply,
    champion,
    distill,
    gate,
    merge,
    mitigate,
    preflight,
    promote,
    report,
    sweep,
    teacher,
    train_job,
    validate,
)
from posgap.kubeflow.form import commonly
from posgap.options.cluster import ClusterConfig
from posgap.options.preflight import PIPELINE_BACKENDS
from posgap.pipelines.forms import FORMS, dropdowns, form
from posgap.pipelines.pools import Pools, cluster_config
from posgap.tasks.registry import TASKS


def mitigation_pipeline(cluster: ClusterConfig) -> Callable:
    """The pipeline as compiled for a cluster. Its form is `PreflightConfig`."""

    @dropdowns({"task": TASKS.names(), "inference_backend": PIPELINE_BACKENDS.names(), "methods": commonly()})
    @dsl.pipeline(
        name="posgap-mitigation",
        description="Measure the position gap, close it (Pos2Distill, mitigations), promote what the gate admits.",
        pipeline_root=cluster.pipeline_root,
    )
    @form(FORMS["mitigation"], gpus_train=cluster.train.accelerators)
    def mitigation(**parameters: Any):
        """preflight -> validate -> sweep (base, champion) -> candidates: one a method -> sweep -> gate -> promote."""
        model = parameters["base_model"]
        name = parameters["registered_name"]
        pools = Pools(cluster, parameters["gpus_train"])
        ending = pools.report(report(registered_name=name)).set_caching_options(False)
        with dsl.ExitHandler(ending, name="mitigation"):
            plan = pools.preflight(preflight(trainer=cluster.trainer, **parameters)).set_caching_options(False)
            # KFP's importer takes its address from its group's inputs alone, never from a step beside it: a group of
            # their own makes `preflight`'s outputs the importers' inputs.
            with dsl.If(plan.outputs["Output"] == True, name="something to do"):  # noqa: E712  KFP reads it
                _measure_and_mitigate(plan.outputs, pools, model, name)

    return mitigation


def _measure_and_mitigate(given: Mapping[str, Any], pools: Pools, model: str, name: str) -> None:
    """Makes the steps that need GPUs. `given` is the output of `preflight`, and `name` that of the registered model.

    KFP takes a step from its cache if its parameters and the names of its artifacts are the same. So each cached step
    has a digest of all its origins as a parameter: `measured` if these are evaluation data and base model, `made` if
    the training data belong to them too, and one of its own for the champion.
    """
    measured = {"cache_key": given["eval_key"]}
    made = {"cache_key": given["train_key"]}
    # None has a display name: KFP records an importer's artifact by that, and its consumers look for the task's key.
    base = dsl.importer(artifact_uri=model, artifact_class=dsl.Model).output
    train_raw = dsl.importer(artifact_uri=given["train_uri"], artifact_class=dsl.Dataset).output
    eval_raw = dsl.importer(artifact_uri=given["eval_uri"], artifact_class=dsl.Dataset).output
    checked = {"model": base, "settings": given["validate"]}
    # The training data give way, so what is measured stays the same if only they are new.
    held_out = pools.small(validate(examples=eval_raw, **checked, **measured))
    held_out = held_out.set_display_name("validate eval").outputs["out"]
    train = pools.small(validate(examples=train_raw, exclude=held_out, **checked, **made))
    train = train.set_display_name("validate train").outputs["out"]

    def sweep_in_parts(model, title: str, key: Mapping[str, Any], **label: str):
        """The sweep of a model, its parts side by side."""
        with dsl.ParallelFor(given["parts"], name=f"sweep {title}") as shard:
            part = sweep(examples=held_out, model=model, shard=shard, settings=given["sweep"], **key, **label)
            pools.inference(part).set_display_name(f"sweep {title}")
        merged = pools.cpu(merge(sweeps=dsl.Collected(part.outputs["out"]), **key))
        return merged.set_display_name(f"curve {title}").outputs["out"]

    before = sweep_in_parts(base, "base", measured, label="base")
    rival = {"name": name, "version": given["champion"], "cache_key": given["champion_key"]}
    best = pools.inference(champion(examples=held_out, like=before, **rival)).outputs["out"]

    def judge(candidate, title: str) -> None:
        """Sweeps a candidate, and promotes it if the gate admits it."""
        after = sweep_in_parts(candidate, title, made)
        # Its verdict is what the run is about, and each run's report shows it.
        swept_alike = {"candidate": after, "base": before, "champion": best, "examples": held_out}
        decision = pools.gate(gate(**swept_alike, name=name, settings=given["gate"]))
        decision.set_caching_options(False)
        decision.set_display_name(f"gate {title}")
        with dsl.If(decision.outputs["Output"] == True, name="admitted"):  # noqa: E712
            judged = {"model": candidate, "gate": decision.outputs["out"], "sweep": after, "examples": held_out}
            registered = {"name": name, "approval": given["approval"], "recipe": given["recipe"]}
            crowned = promote(base=base, **judged, **registered)
            # Its effect is on the registry, which no cache can repeat.
            pools.promote(crowned).set_caching_options(False).set_display_name(f"promote {title}")

    def judge_mitigated(model, settings, of: str, title: str) -> None:
        """Applies the best mitigation of a model and judges the result."""
        tried = {"examples": train, "exclude": held_out, "model": model, "settings": settings}
        found = pools.inference(mitigate(**tried, **made)).set_display_name(f"mitigate{of}").outputs["out"]
        # Whether it helps for certain is the gate's to say.
        applied = pools.cpu(apply(model=model, found=found, certain=False, **made))
        judge(applied.set_display_name(f"apply{of}").outputs["out"], title)

    with dsl.If(given["mitigated"] == True, name="mitigation"):  # noqa: E712
        judge_mitigated(base, given["mitigate"], "", "mitigated")
    with dsl.ParallelFor(given["trained"], name="distillation") as method:
        asked = teacher(examples=train, model=base, sweep=before, settings=given["teacher"], **made)
        responses = pools.inference(asked).outputs["out"]
        learned = {"examples": train, "responses": responses, "model": base, "method": method, **made}
        if pools.cluster.trainer:
            trained = pools.job(train_job(work="", settings=given["train_job"], **learned))
        else:
            amounts = given["train_cpu"], given["train_memory"]
            trained = pools.train(distill(settings=given["distill"], **learned), *amounts)
        judge(trained.outputs["out"], "distilled")
        with dsl.If(given["layered"] == True, name="on top"):  # noqa: E712
            judge_mitigated(trained.outputs["out"], given["on_top"], " distilled", "distilled and mitigated")


mitigation = mitigation_pipeline(cluster_config())
