"""scale_apply: writes a model folder that carries the RoPE factors of a scaling."""

import logging
from pathlib import Path

from posgap.foundation.errors import PosgapError
from posgap.foundation.printing import RESULT
from posgap.models.factors import check_factors, require_rope
from posgap.models.loading import commit_on_hub, load_config, model_folder
from posgap.scaling.config import ScaleApplyConfig
from posgap.scaling.scaling_file import SCALING_FILE, read_scaling, write_scaled_model
from posgap.stages.frame import stage
from posgap.tracking.runs import Run

log = logging.getLogger(__name__)


@stage
def scale_apply(config: ScaleApplyConfig, out: Path, run: Run) -> None:
    """Writes the model with its factors in `config.json`, `scaling.json`, and a warning in the model card.

    Raises `PosgapError` if the scaling was searched for another model.
    """
    scaling, folder = read_scaling(config.scaling), model_folder(config.model)
    text_config = load_config(config.model).get_text_config()
    require_rope(text_config, config.model)
    check_factors(scaling.factors, text_config.num_hidden_layers, config.model)
    if scaling.model_digest != (config.digest("model") or commit_on_hub(config.model)):
        raise PosgapError(
            f"{config.scaling}: made for another model, {scaling.model} (the digests differ); "
            f"search a scaling for {config.model}"
        )
    write_scaled_model(folder, scaling, out)
    run.artifact(out / SCALING_FILE)
    log.log(RESULT, "%d layers scaled by %s", len(scaling.factors), scaling.factors)
