"""A method: reverse KL, student to teacher, with a temperature, at every trivial placement alike."""

from pydantic import Field

from posgap.distillation.methods import Method
from posgap.foundation.registry import Parameters


class Temperature(Parameters):
    kl_temperature: float = Field(1.0, gt=0, description="reverse-kl: divides both models' logits")


class ReverseKL(Method):
    def objective(self, parameters, pairs):
        from posgap.distillation.batches import advantageous_positions
        from posgap.distillation.losses import token_kl
        from posgap.distillation.objectives import R1

        class Objective(R1):
            def token_losses(self, logits, targets, teacher_logits):
                return token_kl(logits / parameters.kl_temperature, teacher_logits / parameters.kl_temperature)

        return Objective(advantageous_positions(pairs), "none", anchoring=0.0)


REVERSE_KL = ReverseKL("reverse-kl", "KL from the student to the teacher", Temperature, needs_teacher=True)
