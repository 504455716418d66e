"""NTK-aware scaling: a larger base of RoPE, through the model's own `rope_parameters`.

The slowest frequency is divided by the factor, as position interpolation divides it, and the fastest stays as it is:
with d dimensions that are turned, base' = base * factor ** (d / (d - 2)). Whatever scaling the model's RoPE has
already works on the larger base. A saved model has its new base, and beside it the factor, since nothing else shows
that the base was ever another and a second factor would come on top of the first.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from posgap.foundation.errors import PosgapError
from posgap.mitigations.mitigation import ModelMitigation, TriedOn, Undo
from posgap.mitigations.rope_parameters import Factor, put, require_bases, rotary_dimensions, written
from posgap.models import NTK_KEY

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

FACTORS = (1.5, 2.0, 4.0)
# Of these it is known that frequency i is base ** (-2 i / d), before whatever else they do.
_KINDS = ("default", "linear", "dynamic", "yarn", "longrope", "llama3")


def _change(config: "PretrainedConfig", parameters: Mapping[str, Any], factor: float) -> dict[str, Any]:
    name = f"{config.name_or_path or config.model_type}: ntk"
    if parameters["rope_type"] not in _KINDS:
        raise PosgapError(f"{name}: how its RoPE ({parameters['rope_type']}) follows from its base is not known here")
    require_bases(config, parameters, "ntk")
    turned = rotary_dimensions(config, parameters)
    return {**parameters, "rope_theta": parameters["rope_theta"] * factor ** (turned / (turned - 2))}


def _apply(model: "PreTrainedModel", settings: Factor) -> Undo:
    if settings.factor == 1:
        return put(model, "ntk", _change, 1)
    _require_own_base(getattr(model.config, NTK_KEY, None), model.name_or_path or type(model).__name__)
    undo_base = put(model, "ntk", _change, settings.factor)
    setattr(model.config, NTK_KEY, settings.factor)

    def undo() -> None:
        undo_base()
        delattr(model.config, NTK_KEY)

    return undo


def _written(config_json: Mapping[str, Any], settings: Factor) -> dict[str, Any]:
    made = written(config_json, "ntk", _change, settings.factor)
    if settings.factor == 1:
        return made
    _require_own_base(config_json.get(NTK_KEY), "config.json")
    return {**made, NTK_KEY: settings.factor}


def _require_own_base(factor: float | None, where: str) -> None:
    if factor is not None:
        raise PosgapError(
            f"{where}: ntk: its base is a larger one already, by a factor of {factor:g}; apply it to the model that it "
            "was made of"
        )


def _tried(tried_on: TriedOn) -> Sequence[Factor]:
    return [Factor(factor=factor) for factor in FACTORS]


NTK = ModelMitigation(
    name="ntk",
    help="a larger base of RoPE, in the model's own configuration",
    level="config",
    source="bloc97 2023, NTK-aware scaled RoPE; Peng et al. 2023, section 3.1, arXiv 2309.00071",
    cost="nothing",
    served_by=("anything",),
    settings=Factor,
    apply=_apply,
    neutral=lambda config: Factor(factor=1),
    tried=_tried,
    written=_written,
)
