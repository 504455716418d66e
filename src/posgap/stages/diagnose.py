"""diagnose: why a swept model errs at a position, token by token and layer by layer."""

import logging
from pathlib import Path

from posgap.diagnosis.attention import diagnose_attention
from posgap.diagnosis.swept import read_swept
from posgap.diagnosis.wrong_answers import diagnose_tokens
from posgap.foundation.files import write_json
from posgap.generation.transformers import TransformersGenerator
from posgap.measurement.config import DiagnoseConfig
from posgap.measurement.diagnoses import DIAGNOSIS_FILE, Diagnosis
from posgap.measurement.explored import explored_sweep
from posgap.measurement.plots import attention_map, save_picture
from posgap.measurement.report import write_page
from posgap.mitigations.in_force import load_model
from posgap.stages.frame import stage
from posgap.tracking.runs import Run

log = logging.getLogger(__name__)


@stage
def diagnose(config: DiagnoseConfig, out: Path, run: Run) -> None:
    """Writes `diagnosis.json`, `diagnosis.html` and, if attention is measured, `diagnosis.png`.

    Tokens are forced upon the model only as it wrote them itself, so that it need not answer at once.
    """
    swept = read_swept(config)
    model = load_model(config.model, config.dtype)
    generator = TransformersGenerator(model, swept.build.tokenizer, config.batch_tokens)
    diagnosis = Diagnosis(
        label=swept.sweep.label,
        placements=swept.sweep.placements,
        advantageous=swept.sweep.advantageous,
        tokens=diagnose_tokens(swept, generator, config.tokens, config.batch_tokens, config.seed)
        if config.tokens
        else None,
        attention=diagnose_attention(swept, generator, config.attention) if config.attention else None,
        examples_digest=swept.sweep.examples_digest,
        model_digest=swept.sweep.model_digest,
        prompt_digest=swept.sweep.prompt_digest,
    )
    write_json(out / DIAGNOSIS_FILE, diagnosis.model_dump(mode="json"))
    title = f"{diagnosis.label}: why its accuracy depends on the position"
    explored = explored_sweep(swept.sweep, swept.predictions, swept.examples)
    write_page([swept.sweep], out / "diagnosis.html", title, explored, diagnosis)
    if diagnosis.attention:
        save_picture(attention_map(diagnosis.attention, swept.sweep.names, diagnosis.label), out / "diagnosis.png")
        for layer, shares in enumerate(zip(*diagnosis.attention.gold), start=1):
            run.metrics({"attention_to_gold": sum(shares) / len(shares)}, step=layer)
        if preamble := diagnosis.attention.preamble:
            log.info(
                "the model answers %s: the attention of its last prompt token decides on these words; that of the "
                "answer's tokens is in the page too",
                preamble,
            )
    run.artifact(out)
    if (tokens := diagnosis.tokens) and tokens.diagnosed:
        figures = {"recovery_rate": tokens.recovery_rate, "turning_is_peak": tokens.turning_is_peak}
        run.metrics({name: figure for name, figure in figures.items() if figure is not None})
        log.info(
            "%d of %d wrong answers diagnosed: %.0f %% become right when one token is corrected; in %d of them that "
            "token alone is not yet the answer",
            *(tokens.diagnosed, tokens.wrong, tokens.recovery_rate, tokens.unsettled),
        )
