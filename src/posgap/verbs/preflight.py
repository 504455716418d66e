"""preflight: reports everything that would stop a pipeline run, at its start and all at once."""

import json
import logging
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from posgap.distillation.methods import MITIGATE
from posgap.foundation.errors import PosgapError, Rejection
from posgap.foundation.files import write_json
from posgap.foundation.printing import RESULT
from posgap.foundation.redaction import redact_value
from posgap.gating.demands import Policy
from posgap.gating.policy import as_file, policy_line, registered_policy
from posgap.kubeflow.form import (
    as_config,
    candidates,
    complaints,
    flat_settings,
    has_on_top,
    recipe,
    settings,
    shards,
    with_guards,
    with_run_settings,
)
from posgap.kubeflow.prerequisites import prerequisites
from posgap.kubeflow.training_pool import requests
from posgap.options.data_version import DataVersionConfig
from posgap.options.gate import GateConfig
from posgap.options.preflight import PreflightConfig
from posgap.tracking.runs import Run
from posgap.verbs.data_version import find_version
from posgap.verbs.demanded import policy_of
from posgap.verbs.frame import stage

log = logging.getLogger(__name__)
PREFLIGHT_FILE = "preflight.json"


@stage
def preflight(config: PreflightConfig, out: Path, run: Run) -> None:
    """Writes `preflight.json`: the results of the checks, the newest data and whether they are due, and the parameters
    of each stage of the pipeline.

    Raises `Rejection` with all faults in one line; it may pass if each of them may, such as a server that does not
    answer. Earlier results are never reused, since the world may have changed.
    """
    complained = list(complaints(config))
    errors = list[PosgapError]()
    results = {}
    said = redact_value(flat_settings(config.settings))
    for name, value in said.items():
        log.info("settings: %s: %s", name, json.dumps(value))
    config = with_run_settings(config)
    policy = None
    try:
        policy = registered_policy(config.registered_name)
    except PosgapError as error:
        errors.append(error)
    given = settings(with_guards(config, policy) if policy else config)
    checks = prerequisites(config)
    if policy:
        del given["gate"]["guards"]  # which the policy decides
        checks["policy"] = lambda: _check_policy(given["gate"], policy)
    for name, check in checks.items():
        try:
            results[name] = check()
        except PosgapError as error:
            errors.append(error)
    wrong = list(dict.fromkeys([*complained, *map(str, errors)]))  # several checks report the same missing thing
    plan: dict[str, object] = {"found": results, "wrong": wrong, "given": said, "settings": given}
    if not wrong:
        plan |= _plan_run(config, run)
    write_json(out / PREFLIGHT_FILE, plan)
    run.artifact(out)
    if wrong:
        listed = "; ".join(f"({number}) {fault}" for number, fault in enumerate(wrong, start=1))
        things = f"{len(wrong)} thing{'s' * (len(wrong) > 1)}"
        rejection = Rejection(f"{things} to correct before the run can start: {listed}")
        rejection.may_pass = not complained and all(error.may_pass for error in errors)
        raise rejection
    for name, result in results.items():
        log.log(RESULT, "%s: %s", name, result)


def _check_policy(given: dict[str, Any], policy: Policy) -> str:
    """Checks that the gate's settings agree with the policy of the registered model."""
    try:
        config = as_config("gate", given)
    except ValidationError:
        return "unknown: the form has faults"  # which `complaints` reports
    assert isinstance(config, GateConfig)
    policy_of(config.model_copy(update={"policy": as_file(policy)}))
    return policy_line(policy)


def _plan_run(config: PreflightConfig, run: Run) -> dict[str, Any]:
    """Returns which groups of steps a run has, and by what its inputs are found."""
    made = candidates(config.methods)
    trained = [name for name in made if name != MITIGATE.name]
    plan: dict[str, Any] = {"trained": trained, "mitigated": trained != made, "layered": has_on_top(config.methods)}
    plan |= {"parts": shards(config.shards), "approval": config.approval}
    plan |= {f"train_{name}": quantity for name, quantity in requests(config).items()}
    asked = DataVersionConfig(
        data=config.data_train,
        data_eval=config.data_eval,
        model=config.base_model.rstrip("/"),
        name=config.registered_name,
        recipe=recipe(config),
        only_new=config.only_new,
    )
    return plan | {"recipe": asked.recipe, "version": find_version(asked, run)}
