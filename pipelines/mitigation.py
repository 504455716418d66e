"""The mitigation pipeline: measure a model's position gap, distil it away, and promote the result
if the gate admits it."""

from typing import NamedTuple

from kfp import dsl
from posgap.components.distill.component import distill
from posgap.components.gate.component import gate
from posgap.components.promote.component import promote
from posgap.components.sweep.component import sweep
from posgap.components.teacher.component import teacher
from posgap.components.validate.component import validate

from posgap.config import DistillConfig, GateConfig, PromoteConfig, SweepConfig, TeacherConfig


class Outputs(NamedTuple):
    """What a run leaves: both sweeps, the trained model and the gate's decision."""

    base: dsl.Artifact
    responses: dsl.Dataset
    candidate_model: dsl.Model
    candidate: dsl.Artifact
    gate: dsl.Artifact
    train: dsl.Dataset
    eval: dsl.Dataset


@dsl.pipeline(
    name="posgap-mitigation",
    description="Measure the position gap, close it with Pos2Distill-R1, promote the model if the gate admits it.",
)
def mitigation(
    train_data: str,
    eval_data: str,
    model: str,
    task: str = SweepConfig.default("task"),
    n_docs: int = SweepConfig.default("n_docs"),
    max_new_tokens: int = SweepConfig.default("max_new_tokens"),
    advantageous: str = TeacherConfig.default("advantageous"),
    k: int = DistillConfig.default("k"),
    anchoring: float = DistillConfig.default("anchoring"),
    epochs: int = DistillConfig.default("epochs"),
    batch_size: int = DistillConfig.default("batch_size"),
    learning_rate: float = DistillConfig.default("learning_rate"),
    warmup_steps: int = DistillConfig.default("warmup_steps"),
    max_gap: float = GateConfig.default("max_gap"),
    mean_tolerance: float = GateConfig.default("mean_tolerance"),
    advantageous_tolerance: float = GateConfig.default("advantageous_tolerance"),
    registered_name: str = PromoteConfig.default("name"),
    seed: int = SweepConfig.default("seed"),
) -> Outputs:
    """validate -> sweep(base) -> teacher -> distill -> sweep(candidate) -> gate -> promote.

    Args:
        train_data: URI of the examples the model is distilled on.
        eval_data: URI of the examples it is judged on; disjoint from the training examples.
        model: URI of the Hugging Face model folder.
        task: How prompts are worded: kv, qa, multihop-cot or multihop-coc.
        n_docs: Documents in a prompt.
        max_new_tokens: Longest response in tokens; 0 is the task's own.
        advantageous: Where the teacher's gold stands, like 1, or 19+20; empty is the best placement of the base sweep.
        k: Trivial positions drawn per example and epoch.
        anchoring: Weight of the anchoring loss (lambda).
        epochs: Passes over the training examples.
        batch_size: Examples per optimizer step.
        learning_rate: Peak learning rate.
        warmup_steps: Steps of linear warm-up.
        max_gap: Highest gap in points that the gap's interval may reach.
        mean_tolerance: Points of mean the candidate may lose.
        advantageous_tolerance: Points it may lose where the base answers best.
        registered_name: Registered model in MLflow.
        seed: Seed of every stage.
    """
    base_model = dsl.importer(artifact_uri=model, artifact_class=dsl.Model).set_display_name("base model").output
    train_raw = dsl.importer(artifact_uri=train_data, artifact_class=dsl.Dataset).set_display_name("train data").output
    eval_raw = dsl.importer(artifact_uri=eval_data, artifact_class=dsl.Dataset).set_display_name("eval data").output
    prompts = {"task": task, "n_docs": n_docs, "max_new_tokens": max_new_tokens, "seed": seed}

    train = validate(examples=train_raw, model=base_model, **prompts).set_display_name("validate train").output
    evaluation = (
        validate(examples=eval_raw, exclude=train, model=base_model, **prompts).set_display_name("validate eval").output
    )
    base = sweep(examples=evaluation, model=base_model, label="base", **prompts).set_display_name("sweep base")
    responses = teacher(
        examples=train, model=base_model, sweep=base.outputs["out"], advantageous=advantageous, **prompts
    ).output
    trained = distill(
        examples=train,
        responses=responses,
        model=base_model,
        task=task,
        k=k,
        anchoring=anchoring,
        epochs=epochs,
        batch_size=batch_size,
        learning_rate=learning_rate,
        warmup_steps=warmup_steps,
        seed=seed,
    ).output
    candidate = sweep(examples=evaluation, model=trained, label="Pos2Distill-R1", **prompts).set_display_name(
        "sweep candidate"
    )
    decision = gate(
        candidate=candidate.outputs["out"],
        base=base.outputs["out"],
        max_gap=max_gap,
        mean_tolerance=mean_tolerance,
        advantageous_tolerance=advantageous_tolerance,
        seed=seed,
    )
    with dsl.If(decision.outputs["Output"] == True, name="admitted"):  # noqa: E712  KFP reads the comparison
        # Its effect is on the registry, which no cache can repeat.
        promote(
            model=trained,
            gate=decision.outputs["out"],
            sweep=candidate.outputs["out"],
            name=registered_name,
            seed=seed,
        ).set_caching_options(False)
    return Outputs(
        base=base.outputs["out"],
        responses=responses,
        candidate_model=trained,
        candidate=candidate.outputs["out"],
        gate=decision.outputs["out"],
        train=train,
        eval=evaluation,
    )
