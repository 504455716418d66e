"""rollout measure: residual strengths, attention, and the influence of each input position on the last token."""

import logging
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedModel

from posgap.foundation.errors import PosgapError
from posgap.foundation.files import write_json
from posgap.foundation.locations import with_uris
from posgap.foundation.printing import RESULT
from posgap.generation.setup import prompt_builder
from posgap.generation.transformers import TransformersGenerator
from posgap.measurement.plots import save_picture
from posgap.measurement.probe import LOOKS, listened
from posgap.mitigations.in_force import load_model
from posgap.models.factors import config_factors
from posgap.models.loading import context_length, load_tokenizer, on_device
from posgap.rollout.agreement import agreement
from posgap.rollout.agreement import summary_text as agreement_summary
from posgap.rollout.config import RolloutMeasureConfig
from posgap.rollout.decoders import n_heads, position_encoding
from posgap.rollout.distributions import describe, summary_text
from posgap.rollout.documents import by_document, summary
from posgap.rollout.documents import summary_text as by_documents_summary
from posgap.rollout.files import MEASUREMENT_FILE, SINK_THRESHOLD, Measurement, write_arrays
from posgap.rollout.measurement import measure
from posgap.rollout.plots import distribution_curves, document_panels, layer_panels
from posgap.rollout.texts import Sequences, placed_examples, read_prompts, read_text
from posgap.stages.frame import stage
from posgap.tracking.runs import Run

log = logging.getLogger(__name__)
PER_HEAD = ("content", "first_mass", "diagonal_mass", "entropy")
MIN_UNATTENDED = 1e-3  # the share of attention on no token from which it is told; less is rounding


@stage
def rollout_measure(config: RolloutMeasureConfig, out: Path, run: Run) -> None:
    """Writes `measurement.json`, `arrays.npz`, `influence.png` and `layers.png`."""
    sequences = _sequences(config)
    n = sequences.length
    model = on_device(load_model(config.model, config.dtype), "cuda" if torch.cuda.is_available() else "cpu")
    if n > (context := context_length(model.config, load_tokenizer(config.model))):
        raise PosgapError(
            f"{config.texts}: texts of {n} tokens exceed the model's context of {context}; lower `length`"
        )
    encoding = position_encoding(model.config)
    heads = n_heads(model.config)
    measured = measure(
        model,
        sequences.batches(config.batch_tokens, f"measure {config.label}"),
        n,
        np.array(encoding.get("slopes", np.zeros(heads))),
        SINK_THRESHOLD,
        sequences.asked,
        config.attributions,
    )
    statistics, influence = measured.statistics, measured.influence
    encoding["frequencies"] = measured.frequencies
    if factors := config_factors(model.config):
        encoding["factors"] = [factors[number - 1] for number in measured.layers]
    mean = {name: rows.mean(axis=0) for name, rows in influence.items()}
    said = summary_text(mean["rollout"], statistics["lambdas"], mean["rollout_without_residuals"])
    unattended = measured.unattended if measured.unattended["rollout_without_residuals"] > MIN_UNATTENDED else {}
    if unattended:
        said += (
            f"; {100 * statistics['unattended'].mean():.0f} % of the attention goes to logits beside the tokens, and "
            f"{100 * unattended['rollout']:.0f} % of the rollout with it: shares are of what reaches tokens"
        )
    if measured.mixing:
        said += f"; {measured.mixing}"
    by_documents: dict[str, np.ndarray] = {}
    documents = None
    if measured.documents is not None:
        spans = [each.spans for each in sequences.asked]
        by_documents = {name: by_document(rows, spans) for name, rows in influence.items()}
        documents = summary(sequences.asked, by_documents, measured.documents, config.seed)
        said += f"; {by_documents_summary(documents)}"
    if preamble := _preamble(config, model):
        said += f"; the model answers {preamble}: what reaches the last token decides on these words, not on the answer"
    agreed = agreement(by_documents or influence, "documents" if by_documents else "tokens", config.seed)
    said += f"; {agreement_summary(agreed)}"
    result = Measurement(
        label=config.label,
        model=with_uris(config.model),
        n_texts=len(influence["rollout"]),
        sequence_length=n,
        layers=len(statistics["lambdas"]),
        heads=heads,
        encoding=encoding,
        lambdas=statistics["lambdas"].tolist(),
        **{name: statistics[name].tolist() for name in PER_HEAD},
        first_sink=statistics["sink"][:, :, 0].tolist(),
        influence={name: values.tolist() for name, values in mean.items()},
        descriptions={name: describe(values) for name, values in mean.items()},
        windows=measured.windows,
        unattended=unattended,
        attention_layers=measured.layers,
        agreement=agreed,
        documents=documents,
        summary=said,
        settings=config.chosen(),
    )
    write_json(out / MEASUREMENT_FILE, result.model_dump(mode="json"))
    by_head = {name: statistics[name] for name in ("distance", "sink", "unattended")}
    of_documents = {f"documents_{name}": shares for name, shares in by_documents.items()}
    if measured.documents is not None:
        of_documents["documents_attention"] = measured.documents
    write_arrays(out, by_head | influence | of_documents)
    curves = {name.replace("_", " "): values for name, values in mean.items()}
    drawn = document_panels(documents, agreed) if documents else distribution_curves(curves, "share of the influence")
    save_picture(drawn, out / "influence.png")
    save_picture(layer_panels(result, statistics), out / "layers.png")
    for layer, strength in zip(result.attention_layers, result.lambdas):
        run.metrics({"residual_strength": strength}, step=layer)
    for name, description in result.descriptions.items():
        run.metrics({f"{name}_{key}": value for key, value in description.items() if key != "shape"})
    run.tags({"posgap.label": config.label, "posgap.shape": result.descriptions["rollout"]["shape"]})
    run.artifact(out)
    log.log(RESULT, "%s: %s", config.label, result.summary)


def _preamble(config: RolloutMeasureConfig, model: PreTrainedModel) -> str:
    """After what words a model answers the first of the prompts that are measured; empty where it answers at once, or
    where there is no task."""
    if not config.task:
        return ""
    build = prompt_builder(config.task, config.model, 0)
    generator = TransformersGenerator(model, build.tokenizer, config.batch_tokens)
    asked = placed_examples(config.texts, build, config.n_docs, config.limit)
    return listened(generator, build, asked[: LOOKS[0]]).preamble


def _sequences(config: RolloutMeasureConfig) -> Sequences:
    if config.task:
        build = prompt_builder(config.task, config.model, 0)
        return read_prompts(config.texts, build, config.n_docs, config.length, config.limit)
    return read_text(config.texts, load_tokenizer(config.model), config.length, config.limit)
