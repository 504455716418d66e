"""rollout measure: how much each part of a prompt reaches the last token."""

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from posgap.foundation.errors import BadOption, PosgapError
from posgap.foundation.files import write_json
from posgap.foundation.locations import last_name, with_uris
from posgap.foundation.printing import RESULT
from posgap.generation.asking import ResponseLimits, Wording
from posgap.generation.setup import builder_of
from posgap.generation.transformers import TransformersGenerator
from posgap.measurement.plots import save_picture
from posgap.measurement.probe import FEW, listen
from posgap.mitigations.in_force import load_model
from posgap.models.factors import config_factors
from posgap.models.loading import context_length, load_tokenizer, on_device
from posgap.options.rollout_measure import RolloutMeasureConfig
from posgap.rollout.agreement import agreement_text, measure_agreement
from posgap.rollout.decoders import n_heads, position_encoding
from posgap.rollout.distributions import bin_distribution, strengths_text
from posgap.rollout.documents import MeasuredPrompt, documents_text, summarize_documents
from posgap.rollout.files import MEASUREMENT_FILE, SINK_THRESHOLD, Accuracy, Measurement, places, write_arrays
from posgap.rollout.measurement import MeasuredInfluence, measure_influence
from posgap.rollout.plots import distribution_curves, document_panels
from posgap.rollout.texts import Sequences, placed_examples, read_prompts, read_text
from posgap.tasks.prompts import PromptBuilder
from posgap.tracking.runs import Run
from posgap.verbs.frame import stage

log = logging.getLogger(__name__)
PER_HEAD = ("content", "first_mass", "diagonal_mass", "entropy")
BATCH_TOKENS = 4096
MIN_UNATTENDED = 1e-3  # the share of attention on no token that is reported; less is rounding


@stage
def rollout_measure(config: RolloutMeasureConfig, out: Path, run: Run) -> None:
    """Writes `measurement.json`, `arrays.npz` and `influence.png`."""
    builder = builder_of(config.model, Wording(config.task), ResponseLimits()) if config.task else None
    swept = Accuracy.of_sweep(config.sweep, builder, config.n_docs) if config.sweep else None
    positions = swept.positions if swept else []
    sequences = _sequences(config, builder, positions)
    label = config.label or last_name(config.model)
    model = _load_model(config, sequences.longest)
    measured, encoding = _measure(model, sequences, label)
    shortest = min(map(len, measured.influence["rollout"]))
    influence = _bin_influence(measured, places(shortest, sequences.longest))
    documents = None
    shares = dict[str, np.ndarray]()
    if measured.documents is not None:
        documents, shares = summarize_documents(sequences.asked, measured.influence, measured.documents, config.seed)
    agreement = measure_agreement(shares or influence, "documents" if shares else "tokens", config.seed)
    findings = list(_findings(_preamble(config, model, builder, positions), measured, documents, agreement))
    statistics = measured.statistics
    result = Measurement(
        label=label,
        model=with_uris(config.model),
        n_texts=len(measured.influence["rollout"]),
        sequence_length=sequences.longest,
        shortest=shortest,
        layers=len(statistics["lambdas"]),
        heads=n_heads(model.config),
        encoding=encoding,
        lambdas=statistics["lambdas"].tolist(),
        **{name: statistics[name].tolist() for name in PER_HEAD},
        first_sink=statistics["sink"][:, :, 0].tolist(),
        influence={name: values.mean(axis=0).tolist() for name, values in influence.items()},
        windows=measured.windows,
        unattended=measured.unattended if measured.unattended["rollout_without_residuals"] > MIN_UNATTENDED else {},
        attention_layers=measured.layers,
        agreement=agreement,
        documents=documents,
        sweep=swept,
        summary="; ".join(findings),
        settings=config.parameter_values(),
    )
    write_json(out / MEASUREMENT_FILE, result.model_dump(mode="json"))
    write_arrays(out, _arrays(measured, influence, shares, sequences.asked))
    if documents and shares:
        drawn = document_panels(documents, agreement)
    else:
        curves = {name.replace("_", " "): values.mean(axis=0) for name, values in influence.items()}
        drawn = distribution_curves(curves, "share of the influence")
    save_picture(drawn, out / "influence.png")
    run.tags({"posgap.label": result.label})
    run.artifact(out)
    for finding in findings:
        log.log(RESULT, "%s: %s", label, finding)


def _measure(model: PreTrainedModel, sequences: Sequences, label: str) -> tuple[MeasuredInfluence, dict[str, Any]]:
    """Measures a model on the sequences; returns the result, and its measured position encoding."""
    encoding = position_encoding(model.config)
    measured = measure_influence(
        model,
        sequences.batches(BATCH_TOKENS, f"measure {label}"),
        sequences.longest,
        np.array(encoding.get("slopes", np.zeros(n_heads(model.config)))),
        SINK_THRESHOLD,
        sequences.asked,
    )
    encoding["frequencies"] = measured.frequencies
    factors = config_factors(model.config)
    if factors:
        encoding["factors"] = [factors[number - 1] for number in measured.layers]
    return measured, encoding


def _load_model(config: RolloutMeasureConfig, longest: int) -> PreTrainedModel:
    """Returns the model, on a GPU if there is one. Raises `PosgapError` if texts of `longest` tokens exceed its
    context."""
    model = on_device(load_model(config.model, config.dtype), "cuda" if torch.cuda.is_available() else "cpu")
    context = context_length(model.config, load_tokenizer(config.model))
    if longest > context:
        raise PosgapError(
            f"{config.texts}: texts of {longest} tokens exceed the model's context of {context}; lower `length`"
        )
    return model


def _bin_influence(measured: MeasuredInfluence, bins: int) -> dict[str, np.ndarray]:
    """Each text's distribution over the same places, by measure, [E, bins] each."""
    return {name: np.stack([bin_distribution(row, bins) for row in rows]) for name, rows in measured.influence.items()}


def _arrays(
    measured: MeasuredInfluence,
    influence: dict[str, np.ndarray],
    shares: dict[str, np.ndarray],
    prompts: Sequence[MeasuredPrompt],
) -> dict[str, np.ndarray]:
    """Returns what `arrays.npz` holds, by name."""
    arrays = {name: measured.statistics[name] for name in ("distance", "sink", "unattended")} | influence
    arrays |= {f"documents_{name}": values for name, values in shares.items()}
    if measured.documents is not None:
        arrays["documents_attention"] = measured.documents
        lengths = map(len, measured.influence["rollout"])
        arrays["edges"] = np.stack([np.ravel(each.spans) / n for each, n in zip(prompts, lengths)])
    return arrays


def _findings(
    preamble: str, measured: MeasuredInfluence, documents: dict[str, Any] | None, agreement: dict[str, Any]
) -> Iterator[str]:
    """Yields the findings, each in a clause."""
    if documents:
        yield documents_text(documents)
    yield strengths_text(measured.statistics["lambdas"])
    lost = measured.unattended
    if lost["rollout_without_residuals"] > MIN_UNATTENDED:
        yield (
            f"{100 * measured.statistics['unattended'].mean():.0f} % of the attention goes to logits beside the "
            f"tokens, and {100 * lost['rollout']:.0f} % of the rollout with it: shares are of what reaches tokens"
        )
    if measured.mixing:
        yield measured.mixing
    if measured.no_value_norm:
        yield f"value norms and the rollout by gradients are left out: {measured.no_value_norm}"
    if preamble:
        yield f"the model answers {preamble}: what reaches the last token decides on these words, not on the answer"
    yield agreement_text(agreement)


def _preamble(
    config: RolloutMeasureConfig, model: PreTrainedModel, builder: PromptBuilder | None, positions: Sequence[int]
) -> str:
    """Returns the words before a model's answer to the first measured prompt; empty if it answers at once or there is
    no task."""
    if not builder:
        return ""
    generator = TransformersGenerator(model, builder.tokenizer, BATCH_TOKENS)
    asked = placed_examples(config.texts, builder, config.n_docs, config.limit, positions)
    return listen(generator, builder, asked[:FEW]).preamble


def _sequences(config: RolloutMeasureConfig, builder: PromptBuilder | None, positions: Sequence[int]) -> Sequences:
    if not builder:
        return read_text(config.texts, load_tokenizer(config.model), config.length, config.limit)
    if config.length:
        raise BadOption("length: is for plain texts; prompts are measured whole; leave out `length` or `task`")
    return read_prompts(config.texts, builder, config.n_docs, config.limit, positions)
