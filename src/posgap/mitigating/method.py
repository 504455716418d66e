"""The best mitigation of a model as a method that the pipeline can try."""

from posgap.distillation.methods import Method

MITIGATE = Method(
    "mitigate",
    "the remedy without training that measures best of those that suit the model",
    made_by="apply",
)
