"""YaRN: slow frequencies are interpolated, fast ones are not, and attention is sharpened, through the model's own
`rope_parameters`."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from posgap.foundation.errors import PosgapError
from posgap.mitigations.mitigation import ModelMitigation, TriedOn, Undo
from posgap.mitigations.rope_parameters import Change, Factor, put, require_unscaled, written

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

FACTORS = (1.5, 2.0, 4.0)


class Yarn(Factor):
    """`factor` by which slow frequencies are divided; those that turn often within `original_max_position_embeddings`
    tokens are not, the length that the model was trained for (None: its `max_position_embeddings`)."""

    original_max_position_embeddings: Annotated[int, Field(gt=0)] | None = None


def _change(settings: Yarn) -> Change:
    def change(config: "PretrainedConfig", parameters: Mapping[str, Any], factor: float) -> dict[str, Any]:
        require_unscaled(config, parameters, "yarn")
        text: Any = config
        original = settings.original_max_position_embeddings or getattr(text, "max_position_embeddings", None)
        if original is None:
            raise PosgapError(
                f"{text.name_or_path or text.model_type}: yarn: its configuration has no max_position_embeddings; give "
                "original_max_position_embeddings"
            )
        yarn = {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original}
        return {**parameters, **yarn}

    return change


def _apply(model: "PreTrainedModel", settings: Yarn) -> Undo:
    return put(model, "yarn", _change(settings), settings.factor)


def _written(config_json: Mapping[str, Any], settings: Yarn) -> dict[str, Any]:
    return written(config_json, "yarn", _change(settings), settings.factor)


def _tried(tried_on: TriedOn) -> Sequence[Yarn]:
    return [Yarn(factor=factor) for factor in FACTORS]


YARN = ModelMitigation(
    name="yarn",
    help="slow frequencies of RoPE interpolated and attention sharpened, in the model's own configuration",
    level="config",
    source="Peng et al. 2023, sections 3.2 to 3.4, arXiv 2309.00071",
    cost="nothing",
    served_by=("anything",),
    settings=Yarn,
    apply=_apply,
    neutral=lambda config: Yarn(factor=1),
    tried=_tried,
    written=_written,
)
