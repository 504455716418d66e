"""diagnose: why a swept model errs at a position, token by token and layer by layer."""

import logging
from pathlib import Path

from posgap.config import DiagnoseConfig
from posgap.diagnosis.attention import diagnose_attention
from posgap.diagnosis.figures import DIAGNOSIS_FILE, Diagnosis
from posgap.diagnosis.swept import read_swept
from posgap.diagnosis.wrong_answers import diagnose_tokens
from posgap.files import write_json
from posgap.generation.transformers import TransformersGenerator
from posgap.models import load_model
from posgap.stage import stage
from posgap.tracking.runs import Run

log = logging.getLogger(__name__)


@stage
def diagnose(config: DiagnoseConfig, out: Path, run: Run) -> None:
    """Writes `diagnosis.json`."""
    swept = read_swept(config)
    model = load_model(config.model, config.dtype)
    generator = TransformersGenerator(model, swept.build.tokenizer, config.batch_tokens)
    found = Diagnosis(
        label=swept.sweep.label,
        placements=swept.sweep.placements,
        advantageous=swept.sweep.advantageous,
        tokens=diagnose_tokens(swept, generator, config.tokens, config.batch_tokens, config.seed)
        if config.tokens
        else None,
        attention=diagnose_attention(swept, generator.model, config.attention) if config.attention else None,
        examples_digest=swept.sweep.examples_digest,
        model_digest=swept.sweep.model_digest,
        prompt_digest=swept.sweep.prompt_digest,
    )
    write_json(out / DIAGNOSIS_FILE, found.model_dump(mode="json"))
    run.artifact(out)
    if (tokens := found.tokens) and tokens.diagnosed:
        run.metrics({"recovery_rate": tokens.recovery_rate, "turning_is_peak": tokens.turning_is_peak})
        log.info(
            "%d of %d wrong answers diagnosed: %.0f %% recover when one token is corrected",
            *(tokens.diagnosed, tokens.wrong, tokens.recovery_rate),
        )
