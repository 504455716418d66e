"""apply: writes a model folder that loads with a mitigation applied."""

import logging
from pathlib import Path
from typing import NamedTuple

import torch
from transformers import PreTrainedModel

from posgap.foundation.errors import PosgapError
from posgap.foundation.files import parse_as
from posgap.foundation.locations import with_uris
from posgap.foundation.printing import RESULT
from posgap.mitigations.applied import APPLIED_FILE, MitigationRecord, write_mitigated_model
from posgap.mitigations.in_force import apply_mitigation, load_model, model_mitigation
from posgap.mitigations.lpes import LPES
from posgap.mitigations.registry import MITIGATIONS
from posgap.mitigations.search.report import MITIGATE_FILE, MitigationOutcome, read_mitigate
from posgap.models.factors import check_factors, is_altered, require_rope
from posgap.models.loading import commit_on_hub, load_config, model_folder
from posgap.options.apply import ApplyConfig
from posgap.scaling.scaling_file import SCALING_FILE, Scaling, read_scaling, write_scaled_model
from posgap.tracking.runs import Run
from posgap.verbs.frame import stage

log = logging.getLogger(__name__)
MAX_APART = 0.02  # of the logits' norm


class Chosen(NamedTuple):
    """A mitigation with its settings, the model for which they were found, and the contents of the examples that chose
    them; a search of factors also has its `scaling`."""

    name: str
    settings: dict
    model: str
    model_digest: str
    chosen_by: list[str]
    scaling: Scaling | None = None


@stage
def apply(config: ApplyConfig, out: Path, run: Run) -> None:
    """Writes the model with a mitigation in `config.json`, `mitigation.json` (`scaling.json` of factors from `scale
    search`), and a word in the model card. If transformers does not know a setting, the folder is closed to all but
    posgap (`posgap.models.closing`).

    Raises `PosgapError` if the settings were found for another model, or the model cannot have the mitigation.
    """
    digest = config.digest("model") or commit_on_hub(config.model) or ""
    chosen = Chosen(config.mitigation, config.mitigation_settings, config.model, digest, [])
    if config.found:
        chosen = _read_found(config.found, config)
    name = chosen.name
    if chosen.model_digest != digest:
        raise PosgapError(
            f"{config.found}: found for another model, {chosen.model} (the digests differ); search again for "
            f"{config.model}"
        )
    mitigation = model_mitigation(name)
    given = parse_as(mitigation.settings, chosen.settings, f"settings of {name}")
    model = load_model(config.model)
    apply_mitigation(model, name, given)  # it explains why a model cannot have it
    neutral = given == mitigation.neutral_settings(model.config)
    applied = MitigationRecord(
        name=name,
        settings=given.model_dump(mode="json"),
        model=with_uris(config.model),
        model_digest=digest,
        example_contents=chosen.chosen_by,
    )
    folder = model_folder(config.model, weights=True)
    if chosen.scaling:
        write_scaled_model(folder, chosen.scaling, out)
    else:
        write_mitigated_model(folder, mitigation, given, applied, out)
    if not is_altered(load_config(str(out))):  # others load it too, and so it must be in there
        _require_alike(model, load_model(str(out)))
    run.artifact(out / (SCALING_FILE if chosen.scaling else APPLIED_FILE))
    done = "nothing is scaled, since all factors are 1" if name == LPES.name else "these settings change nothing"
    if neutral:
        log.warning("%s: %s; the written model answers like %s", name, done, config.model)
    else:
        log.log(RESULT, "%s applied with %s", name, applied.settings)


def _read_found(found: Path, config: ApplyConfig) -> Chosen:
    """Returns what a folder has, by the file in it."""
    readers = {MITIGATE_FILE: _from_mitigate, SCALING_FILE: _from_search}
    for name, read in readers.items():
        if found.name == name or (found / name).is_file():
            return read(found, config)
    raise PosgapError(f"{found}: has no {' or '.join(readers)}; give a folder from `mitigate` or `scale search`")


def _from_mitigate(found: Path, config: ApplyConfig) -> Chosen:
    result = read_mitigate(found)
    best = _best(result.found, config.mitigation, str(found), config.certain)
    return Chosen(best.name, best.settings, result.model, result.model_digest, result.chosen_by)


def _from_search(found: Path, config: ApplyConfig) -> Chosen:
    scaling = read_scaling(found)
    text_config = load_config(config.model).get_text_config()
    if config.mitigation not in ("", LPES.name):
        raise PosgapError(f"{found}: has factors of {LPES.name}, and not {config.mitigation}; leave `mitigation` out")
    require_rope(text_config, config.model)
    check_factors(scaling.factors, text_config.num_hidden_layers, config.model)
    settings = {"factors": scaling.factors}
    return Chosen(LPES.name, settings, scaling.model, scaling.model_digest, scaling.example_contents, scaling)


@torch.inference_mode()
def _require_alike(model: PreTrainedModel, written: PreTrainedModel) -> None:
    """Raises `PosgapError` unless the mitigated model and the written folder's model agree on some tokens, except for
    rounding."""
    ids = torch.arange(3, 19)[None] % model.config.get_text_config().vocab_size
    said, again = (each(input_ids=ids, use_cache=False).logits.double() for each in (model, written))
    off = float((again - said).norm() / said.norm())
    log.info("logits with the mitigation in memory and from the written folder differ by a share of %.1e", off)
    if not off < MAX_APART:
        raise PosgapError(f"{model.name_or_path}: its files cannot store what the mitigation changes")


def _best(found: list[MitigationOutcome], name: str, where: str, certain: bool) -> MitigationOutcome:
    """Returns the mitigation of that name, or the best measured mitigation of models; if `certain`, only among those
    certainly better than the unmodified model."""
    if name:
        named = [each for each in found if each.name == name and each.tried]
        if not named:
            raise PosgapError(f"{where}: {name} was not tried there; give another `mitigation`, or its settings")
        return named[0]
    of_models = [each for each in found if each.measured and MITIGATIONS[each.name].of_model]
    if not of_models:
        raise PosgapError(f"{where}: it measured no mitigation of models; name the `mitigation` to apply")
    if certain:
        of_models = [each for each in of_models if each.helps]
    if not of_models:
        raise PosgapError(
            f"{where}: no mitigation of models is certainly better than the unmodified model; "
            "name the `mitigation` to apply, or take the best that was measured with --no-certain"
        )
    return max(of_models, key=lambda each: each.measured.difference.mean if each.measured else 0.0)
