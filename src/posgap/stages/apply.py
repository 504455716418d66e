"""apply: writes a model folder that loads with a mitigation in force."""

import logging
from pathlib import Path

from posgap.choices import MITIGATIONS
from posgap.config import ApplyConfig
from posgap.errors import PosgapError
from posgap.files import parsed
from posgap.mitigating.report import Found, read_mitigate
from posgap.mitigations.applied import APPLIED_FILE, Applied, write_mitigated_model
from posgap.models.in_force import apply as put_in_force
from posgap.models.in_force import model_mitigation
from posgap.models.loading import commit_on_hub, load_model, model_folder
from posgap.stage import stage
from posgap.tracking.runs import Run

log = logging.getLogger(__name__)


@stage
def apply(config: ApplyConfig, out: Path, run: Run) -> None:
    """Writes the model with a mitigation in `config.json`, `mitigation.json`, and a warning in the model card.

    Raises `PosgapError` if the settings were found for another model, or the model cannot have the mitigation.
    """
    digest = config.digest("model") or commit_on_hub(config.model) or ""
    name, settings, chosen_by = config.mitigation, config.mitigation_settings, list[str]()
    if config.found:
        result = read_mitigate(config.found)
        if result.model_digest != digest:
            raise PosgapError(
                f"{config.found}: found for another model, {result.model} (the digests differ); "
                f"compare mitigations of {config.model}"
            )
        found = _best(result.found, name, str(config.found), config.certain)
        name, settings, chosen_by = found.name, found.settings, result.chosen_by
    mitigation = model_mitigation(name)
    given = parsed(mitigation.settings, settings, f"settings of {name}")
    put_in_force(load_model(config.model), name, given)  # which says why a model cannot have it
    applied = Applied(
        name=name,
        settings=given.model_dump(mode="json"),
        model=config.model,
        model_digest=digest,
        example_contents=chosen_by,
    )
    write_mitigated_model(model_folder(config.model, weights=True), mitigation, given, applied, out)
    run.artifact(out / APPLIED_FILE)
    log.info("%s applied with %s", name, applied.settings)


def _best(found: list[Found], name: str, where: str, certain: bool) -> Found:
    """The mitigation of that name, or the best that was measured and a model can have; if `certain`, of those that are
    better than the model as it is for certain."""
    if name:
        named = [each for each in found if each.name == name and each.tried]
        if not named:
            raise PosgapError(f"{where}: {name} was not tried there; give another `mitigation`, or its settings")
        return named[0]
    of_models = [each for each in found if each.measured and MITIGATIONS[each.name].of_model]
    if not of_models:
        raise PosgapError(f"{where}: no mitigation that a model can have was measured; name the `mitigation` to apply")
    if certain and not (of_models := [each for each in of_models if each.helps]):
        raise PosgapError(
            f"{where}: no mitigation that a model can have is for certain better than the model as it is; "
            "name the `mitigation` to apply, or take the best that was measured with --no-certain"
        )
    return max(of_models, key=lambda each: each.measured.difference.mean if each.measured else 0.0)
