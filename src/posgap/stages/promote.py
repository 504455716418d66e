"""promote: a model that passed the gate becomes the registry's champion."""

import logging
from pathlib import Path

from posgap.config import PromoteConfig
from posgap.errors import GateFailed, PosgapError
from posgap.files import digest, write_json
from posgap.inputs import read_manifest
from posgap.locations import with_uris
from posgap.measurement.sweeps import read_sweep
from posgap.stage import stage
from posgap.tracking import registry
from posgap.tracking.rules import read_verdict
from posgap.tracking.runs import Run

log = logging.getLogger(__name__)
PROMOTION_FILE = "promotion.json"


@stage
def promote(config: PromoteConfig, out: Path, run: Run) -> None:
    """Registers the model with alias `champion` and writes `promotion.json`.

    A model that is the champion already is left as it is. Raises `GateFailed`, and moves no
    alias, where the gate refused the model; `PosgapError` where sweep and model do not belong
    together.
    """
    verdict, swept = read_verdict(config.gate), read_sweep(config.sweep)
    if not verdict.passed:
        failed = ", ".join(f"{r.name} {r.value:.1f} (threshold {r.threshold:g})" for r in verdict.rules if not r.passed)
        run.tags({"posgap.promotion": "refused"})
        raise GateFailed(f"{config.gate}: the gate refused this model: {failed}; no alias was moved")
    if not Path(config.model).is_dir():
        raise PosgapError(f"{config.model}: no such folder; only a model on disk can be promoted")
    model_digest = digest(Path(config.model))
    if not swept.model_digest == verdict.model_digest == model_digest:
        raise PosgapError(f"{config.model}: sweep and gate are of another model; sweep this one and gate it again")
    made_by = read_manifest(Path(config.model))
    tags = {
        "posgap.gap": f"{swept.gap:.2f}",
        "posgap.gap_ci95_high": f"{swept.gap_ci95[1]:.2f}",
        "posgap.mean": f"{swept.mean:.2f}",
        "posgap.method": made_by.get("config", {}).get("method", "none"),
        "posgap.base_model": made_by.get("config", {}).get("model", with_uris(config.model)),
        "posgap.data_digest": swept.examples_digest,
        "posgap.model_digest": model_digest,
        registry.ANCESTORS: " ".join(made_by.get("ancestors", ())),
    }
    current = registry.champion(config.name)
    if current is not None and current.tags.get("posgap.model_digest") == model_digest:
        version = str(current.version)
        log.info("%s version %s is this model already", config.name, version)
    else:
        version = registry.crown(config.name, Path(config.model), tags, run)
        log.info("%s version %s is the champion", config.name, version)
    run.tags({"posgap.promotion": "promoted", "posgap.version": version, **tags})
    promotion = {"name": config.name, "version": version, "alias": registry.CHAMPION, "tags": tags}
    write_json(out / PROMOTION_FILE, promotion)
    run.artifact(out)
