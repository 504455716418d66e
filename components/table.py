"""The KFP components: what each verb that is a step of pipelines takes and gives. The run page shows its outputs."""

from posgap.components.making import SERVE, TRAIN, make_component
from posgap.kubeflow.artifacts import PLAN

_FIGURES = {"curve": "HTML", "metrics": "Metrics"}
_PLAN = ", ".join(f"({name!r}, {kind})" for name, kind in PLAN.items())

apply = make_component("apply", {"model": "Model"}, {"out": "Model"}, optional={"found": "Artifact"}, settings=True)
champion = make_component(
    "champion",
    {"examples": "Dataset"},
    {"out": "Artifact", **_FIGURES},
    optional={"like": "Artifact"},
    image_kind=SERVE,
)
compare = make_component(
    "compare",
    {"reference": "Artifact", "candidate": "Artifact"},
    {"out": "Artifact", "page": "HTML"},
    settings=True,
    made_of={"sweeps": ("reference", "candidate")},
)
# Its keys are for the steps' `cache_key`: one of the evaluation data, one of these and the training data, one of the
# champion's sweep. It returns whether there is work to do.
data_version = make_component(
    "data_version",
    {},
    {"out": "Artifact"},
    texts=("uri", "version", "eval_uri", "eval_key", "train_key", "champion_key", "champion"),
    returns="bool",
)
distill = make_component(
    "distill",
    {"examples": "Dataset", "responses": "Dataset", "model": "Model"},
    {"out": "Model", "metrics": "Metrics"},
    optional={"eval": "Dataset", "eval_text": "Dataset"},
    image_kind=TRAIN,
    settings=True,
)
gate = make_component(
    "gate",
    {"candidate": "Artifact", "base": "Artifact"},
    {"out": "Artifact", "page": "HTML", "rules": "Markdown", "metrics": "Metrics"},
    optional={"champion": "Artifact", "examples": "Artifact", "policy": "Artifact"},
    returns="bool",  # the verdict
    settings=True,
)
merge = make_component("merge", {"sweeps": "list[Artifact]"}, {"out": "Artifact", **_FIGURES})
mitigate = make_component(
    "mitigate",
    {"examples": "Dataset", "model": "Model"},
    {"out": "Artifact", "page": "HTML", "metrics": "Metrics"},
    optional={"exclude": "Dataset"},
    image_kind=TRAIN,
    settings=True,
)
preflight = make_component(
    "preflight",
    {},
    {"out": "Artifact", "checks": "Markdown"},
    returns=f'NamedTuple("Plan", [{_PLAN}])',
)
promote = make_component(
    "promote",
    {"model": "Model", "gate": "Artifact", "sweep": "Artifact"},
    {"out": "Artifact"},
    optional={"examples": "Artifact", "base": "Model"},
)
report = make_component(
    "report",
    {"status": "dsl.PipelineTaskFinalStatus"},
    {"out": "Artifact", "summary": "Markdown"},
    made_of={"state": ("status",), "message": ()},
)
rollout_experiment = make_component("rollout_experiment", {}, {"out": "Artifact", "picture": "HTML"}, image_kind=TRAIN)
rollout_measure = make_component(
    "rollout_measure",
    {"texts": "Dataset", "model": "Model"},
    {"out": "Artifact", "picture": "HTML"},
    optional={"sweep": "Artifact"},
    image_kind=TRAIN,
)
rollout_predict = make_component(
    "rollout_predict", {}, {"out": "Artifact", "picture": "HTML"}, optional={"measurement": "Artifact"}
)
scale_search = make_component(
    "scale_search",
    {"examples": "Dataset", "model": "Model"},
    {"out": "Artifact", "picture": "HTML", "metrics": "Metrics"},
    optional={"exclude": "Dataset"},
    image_kind=TRAIN,
    settings=True,
)
sweep = make_component(
    "sweep",
    {"examples": "Dataset", "model": "Model"},
    {"out": "Artifact", **_FIGURES},
    image_kind=SERVE,
    settings=True,
)
teacher = make_component(
    "teacher",
    {"examples": "Dataset", "model": "Model", "sweep": "Artifact"},
    {"out": "Dataset", "metrics": "Metrics"},
    image_kind=SERVE,
    settings=True,
)
train_job = make_component(
    "train_job",
    {"examples": "Dataset", "responses": "Dataset", "model": "Model"},
    {"out": "Model", "metrics": "Metrics"},
    settings=True,
)
validate = make_component(
    "validate",
    {"examples": "Dataset", "model": "Model"},
    {"out": "Dataset", "page": "HTML", "metrics": "Metrics"},
    optional={"exclude": "Dataset"},
    settings=True,
)
watch = make_component("watch", {"champion": "Artifact"}, {"out": "Artifact", "summary": "Markdown"})
