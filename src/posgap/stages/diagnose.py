"""diagnose: why a swept model errs at a position, token by token and layer by layer."""

import logging
from pathlib import Path

from posgap.diagnosis.attention import diagnose_attention
from posgap.diagnosis.diagnosed_sweep import DiagnosedSweep, read_diagnosed_sweep
from posgap.diagnosis.token_shifts import diagnose_tokens
from posgap.foundation.files import write_json
from posgap.foundation.printing import RESULT
from posgap.generation.transformers import TransformersGenerator
from posgap.measurement.config import DiagnoseConfig
from posgap.measurement.diagnoses import DIAGNOSIS_FILE, Diagnosis, TokenFigures
from posgap.measurement.page_examples import pack_sweep
from posgap.measurement.plots import attention_map, save_picture
from posgap.measurement.report import write_page
from posgap.measurement.summary import copies_warning
from posgap.mitigations.in_force import load_model
from posgap.stages.frame import stage
from posgap.tracking.runs import Run

log = logging.getLogger(__name__)


@stage
def diagnose(config: DiagnoseConfig, out: Path, run: Run) -> None:
    """Writes `diagnosis.json`, `diagnosis.html` and, if attention is measured, `diagnosis.png`.

    Tokens are forced upon the model only as it wrote them itself, so that it need not answer at once.
    """
    swept = read_diagnosed_sweep(config)
    # In another precision than the sweep's, some of its wrong answers would be right.
    dtype = swept.sweep.asked.dtype if config.dtype == "auto" else config.dtype
    model = load_model(config.model, dtype or "auto")
    generator = TransformersGenerator(model, swept.builder.tokenizer, config.batch_tokens)
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
    _write_pages(swept, diagnosis, out)
    _say_findings(swept, diagnosis, run)
    run.artifact(out)


def _write_pages(swept: DiagnosedSweep, diagnosis: Diagnosis, out: Path) -> None:
    """Writes the page and, where attention was looked at, its map as a picture."""
    title = f"{diagnosis.label}: why its accuracy depends on the position"
    explored = pack_sweep(swept.sweep, swept.predictions, swept.examples)
    write_page([swept.sweep], out / "diagnosis.html", title, explored, diagnosis)
    if diagnosis.attention:
        picture = attention_map(diagnosis.attention, swept.sweep.placement_names, diagnosis.label)
        save_picture(picture, out / "diagnosis.png")


def _say_findings(swept: DiagnosedSweep, diagnosis: Diagnosis, run: Run) -> None:
    """Says what was found, and gives the MLflow run its figures."""
    if diagnosis.attention:
        for layer, shares in enumerate(zip(*diagnosis.attention.gold), start=1):
            run.metrics({"attention_to_gold": sum(shares) / len(shares)}, step=layer)
        preamble = diagnosis.attention.preamble
        if preamble:
            log.info(
                "the model answers %s: the attention of its last prompt token decides on these words; that of the "
                "answer's tokens is in the page too",
                preamble,
            )
    warning, tokens = copies_warning(swept.sweep), diagnosis.tokens
    if warning:
        log.log(RESULT, "%s", warning)
    if tokens:
        figures = {"recovery_rate": tokens.recovery_rate, "turning_is_peak": tokens.turning_is_peak}
        run.metrics({name: figure for name, figure in figures.items() if figure is not None})
        log.log(RESULT, "%s", _summary(tokens, swept.sweep.placement_names[swept.best_index]))
        if tokens.unclean:
            log.info(
                "%d of them repeat the prompt or are cut: there the turning token says where a copy begins, not what "
                "the model found",
                tokens.unclean,
            )


def _summary(tokens: TokenFigures, best: str) -> str:
    which = f"wrong answers to questions that are answered rightly at placement {best}"
    if not tokens.diagnosed:
        again = f"{tokens.wrong} {which}, and asked again, those looked at are right"
        return f"nothing to diagnose token by token: {again if tokens.wrong else f'no {which}'}"
    return (
        f"{tokens.diagnosed} of {tokens.wrong} {which} diagnosed: {tokens.recovery_rate:.0f} % become right when one "
        f"token is corrected; in {tokens.unsettled} of them that token alone is not yet the answer"
    )
