"""promote: a model that passed the gate becomes the registry's champion."""

import functools
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from posgap.distillation.held_out import describe_training
from posgap.distillation.methods import method_of
from posgap.foundation.errors import Contradiction, NotAlike, NotFound
from posgap.foundation.files import digest_path, write_json
from posgap.foundation.locations import Location, with_uris
from posgap.foundation.printing import RESULT
from posgap.gating.copies import copy_sweep, private_sweeps, private_verdict
from posgap.gating.demands import Policy
from posgap.gating.evidence import sweep_record
from posgap.gating.guards import guard_sources, judge_guards
from posgap.gating.policy import as_file, policy_digest, policy_line, registered_policy
from posgap.gating.replay import (
    JUDGED_FILES,
    OutdatedVerdict,
    judge_again,
    read_kept_inputs,
    replay_verdict,
    require_current_champion,
    require_valid,
)
from posgap.gating.signature import require_signed
from posgap.gating.trial import require_answers, require_guards, require_references, require_triable, tried_guards
from posgap.gating.verdict import GATE_FILE, Verdict, digests, read_verdict
from posgap.measurement.evidence import Evidence
from posgap.measurement.rescoring import swept_examples
from posgap.measurement.sweeps import Sweep
from posgap.models.tensors import digest_of_tensors
from posgap.options.gate import GateConfig
from posgap.options.promote import PromoteConfig
from posgap.storage.cache import fetch_location
from posgap.storage.inputs import read_manifest
from posgap.storage.lineage import ancestors, training_examples
from posgap.tracking import registry
from posgap.tracking.answering import as_swept, require_kept_alike
from posgap.tracking.champions import CHALLENGER, CHAMPION
from posgap.tracking.presentation import GUARDS, OF_RUN, describe_version, short_tags, write_pages
from posgap.tracking.promotion import Promotion, Standing, promote_version
from posgap.tracking.runs import PIPELINE_TAG, Run, pipeline_run
from posgap.tracking.version_record import VersionRecord, anchor_of, store_record
from posgap.verbs.frame import stage
from posgap.verbs.gate import judge_and_write

log = logging.getLogger(__name__)
_MAX_TAG = 1000  # characters of a text in MLflow
PROMOTION_FILE = "promotion.json"
_OUTCOMES = {
    CHAMPION: "is the champion",
    CHALLENGER: "is the challenger: `posgap approve` makes it the champion",
    "": "is registered; another candidate of this run is better",
}


def promote(config: PromoteConfig) -> Location:
    """Promotes an admitted model. If the champion has changed since the verdict and `config` names a place for a new
    verdict, the candidate is first judged against today's champion."""
    if config.gate_again:
        folder = fetch_location(config.gate)
        verdict = read_verdict(folder)
        try:
            require_current_champion(verdict, config.name, folder)
        except OutdatedVerdict as reason:
            log.info("%s", reason)
            judged = {"candidate": config.sweep, "base": folder / "base", "examples": config.examples}
            policy = None if registered_policy(config.name) else as_file(verdict.policy)
            anew = GateConfig(**judged, name=config.name, policy=policy, out=config.gate_again, force=True)
            return _register(config.model_copy(update={"gate": judge_and_write(anew), "gate_again": None}))
    return _register(config)


@functools.partial(stage, name="promote")
def _register(config: PromoteConfig, out: Path, run: Run) -> None:
    """Registers the model with alias `champion` and writes `promotion.json`.

    If several candidates of one pipeline run are promoted, the alias ends at the best of them, whichever comes first.
    The kept evidence is judged again, by the name's own policy if there is one, with every response scored again.
    Before an alias moves, the version that the registry returns answers prompts of the sweep.

    If the model is not admitted, raises the verdict's error and moves no alias. Raises `PosgapError` if sweep and model
    do not belong together, the version answers differently or cannot be tried, the verdict compares with another
    champion than today's, or a required signature is missing.
    """
    original = config.sweep
    with private_verdict(config.gate, JUDGED_FILES) as gate, private_sweeps({"sweep": config.sweep}) as copies:
        _promote_judged(config.model_copy(update={"gate": gate, **copies}), original, out, run)


def _promote_judged(config: PromoteConfig, original: Path, out: Path, run: Run) -> None:
    """Promotes by private copies of gate and sweep; `original` is the sweep's own folder."""
    from posgap.models.registrable import require_registrable  # torch

    verdict = replay_verdict(config.gate)
    swept = _judged_sweep(config, verdict)
    run.label(swept.label)
    _require_admitted(verdict, config.model, run)
    examples = swept_examples(config.sweep, config.examples, original)
    policies = [verdict.policy, *filter(None, [registered_policy(config.name)])]
    policy = policies[-1]  # the registered one counts
    guarded_by = guard_sources(config.sweep, policy, config.examples, original)
    again = judge_again(policy, verdict, config.gate, examples, guarded_by)
    _require_admitted(again, f"{config.model} by the policy of {config.name}", run)
    _require_lasting(verdict, config, policies)
    _require_swept_model(config, verdict, swept)
    require_registrable(Path(config.model))
    require_triable(swept, Path(config.model), policy)
    beaten = require_current_champion(verdict, config.name, config.gate)
    inputs = read_kept_inputs(policy, verdict, config.gate)
    guards = tried_guards(judge_guards(inputs, policy).judged, policy, guarded_by)
    require_references(config.name, inputs, policy, examples, config.base, guards)
    tags = _version_tags(config, again, swept, policy, run, out)
    is_registered = bool(registry.find_versions(config.name, registry.DIGEST, config.digest("model")))

    def try_out(stored: Path) -> None:
        # MLflow's copy is judged: the model's own folder may change between two readings.
        require_registrable(stored)
        _require_learnt(stored, config)
        # A run that ends at the weights of a registered version made them of sweeps of its own.
        if not is_registered:
            _require_origin(stored, config, swept)
        if digest_of_tensors(stored) != tags[registry.WEIGHTS]:
            raise Contradiction("MLflow returned other weights than were uploaded; promote again")
        require_kept_alike(stored, swept)
        require_answers(stored, inputs, policy, examples, config.sweep)
        require_guards(stored, guards, policy)

    promotion = Promotion(
        config.name,
        Path(config.model),
        tags,
        run,
        sweep=out / registry.PROMOTED_SWEEP,
        asked=as_swept(swept),
        needs_approval=config.approval or any(each.approval for each in policies),
        despite_rollback=config.despite_rollback,
        require_current=lambda: require_current_champion(verdict, config.name, config.gate, beaten),
        try_out=try_out,
    )
    trained = describe_training(Path(config.model))
    standing = promote_version(promotion)
    _log_promotion(config.name, standing, tags, out, run)
    describe_version(config.name, standing.version, swept, run, tags[GUARDS], trained)


def _judged_sweep(config: PromoteConfig, verdict: Verdict) -> Sweep:
    """The sweep to promote by; `PosgapError` unless the gate judged it, and it asked the model alone."""
    evidence = Evidence(config.sweep)
    swept_files = sweep_record(evidence).files
    for name, sha in verdict.evidence["candidate"].files.items():
        if sha != swept_files.get(name):
            raise NotAlike(
                f"judged another sweep than {config.sweep}: {name} differs; gate this one", at=str(config.gate)
            )
    evidence.sweep.require_model_alone(
        config.sweep, "the registry serves the model alone: sweep without one, gate that and promote it"
    )
    return evidence.sweep


def _require_admitted(verdict: Verdict, what: str, run: Run) -> None:
    """Raises what the verdict says, and tags the run so, unless it admits the model."""
    if not verdict.passed:
        run.tags({"posgap.promotion": "refused"})
        raise verdict.error(f"{what}, no alias was moved")


def _require_lasting(verdict: Verdict, config: PromoteConfig, policies: Sequence[Policy]) -> None:
    """`PosgapError` if a verdict is for another name, too old, or without a signature that a policy asks for."""
    require_valid(verdict, config.name, policies, config.gate)
    for signed_by in {policy.signed_by for policy in policies if policy.signed_by}:
        require_signed(config.gate / GATE_FILE, signed_by, f"the policy of {config.name}")


def _require_swept_model(config: PromoteConfig, verdict: Verdict, swept: Sweep) -> None:
    """Raises `PosgapError` unless the model's folder is the swept one, and reports the same origin as the sweep."""
    if not Path(config.model).is_dir():
        raise NotFound("no such folder; only a model on disk can be promoted", at=config.model)
    if not swept.model_digest == verdict.model_digest == config.digest("model"):
        raise NotAlike("sweep and gate are of another model; sweep this one and gate it again", at=config.model)
    _require_learnt(Path(config.model), config)
    _require_origin(Path(config.model), config, swept)


def _require_learnt(model: Path, config: PromoteConfig) -> None:
    """Raises `PosgapError` unless a model's folder agrees with the sweep on what it learnt."""
    if training_examples(model) != training_examples(config.sweep):
        raise Contradiction(
            f"says otherwise than {config.model} what the model learnt; sweep it again", at=str(config.sweep)
        )


def _require_origin(model: Path, config: PromoteConfig, swept: Sweep) -> None:
    """Raises `PosgapError` unless a model's folder agrees with the sweep on what it was made from."""
    if ancestors(model) != swept.ancestors:
        raise Contradiction(
            f"says otherwise than {config.model} what the model was made from; sweep it again", at=str(config.sweep)
        )


def _version_tags(
    config: PromoteConfig, verdict: Verdict, swept: Sweep, policy: Policy, run: Run, out: Path
) -> dict[str, str]:
    """Writes the version's pages and the record of its evidence into `out`, and returns the version's tags.

    Tags without a value are left out, except the model's digest.
    """
    made_by = read_manifest(Path(config.model))
    record = VersionRecord(
        sweeps=digests(verdict),
        verdict=digest_path(config.gate / GATE_FILE),
        policy=policy_digest(policy),
        base_model=str(made_by.get("config", {}).get("model", with_uris(config.model))),
        ancestors=ancestors(config.model),
        anchor=_best_before(config.name, verdict),
    )
    write_pages(swept, out)
    copy_sweep(config.sweep, out / registry.PROMOTED_SWEEP)
    shown = short_tags(swept, method_of(config.model), verdict.outcome, policy_line(policy))
    shown |= {GUARDS: "; ".join([verdict.measured, *(guard.text for guard in verdict.guards)])[:_MAX_TAG]}
    optional = {
        PIPELINE_TAG: pipeline_run(),
        registry.RECIPE: config.recipe,
        registry.DTYPE: swept.asked.dtype,
        registry.DEVICE: swept.asked.device,
    }
    required = {
        registry.DIGEST: config.digest("model"),
        registry.WEIGHTS: digest_of_tensors(Path(config.model)),
        registry.JUDGED_FOR: config.name,
        registry.PROMOTION_RUN: run.required_id(),
        registry.POLICY: policy.model_dump_json(),
        registry.EVIDENCE: store_record(record, run.id, out),
    }
    return shown | required | {tag: value for tag, value in optional.items() if value}


def _log_promotion(name: str, standing: Standing, tags: Mapping[str, str], out: Path, run: Run) -> None:
    """Says what became of the version, in the log, in the tags of the run, and in `promotion.json`."""
    log.log(RESULT, "%s version %s %s", name, standing.version, _OUTCOMES[standing.alias])
    promotion = "promoted" if standing.alias == CHAMPION else "registered"
    run.tags({"posgap.promotion": promotion, "posgap.version": standing.version} | {tag: tags[tag] for tag in OF_RUN})
    write_json(out / PROMOTION_FILE, {"name": name, **standing._asdict(), "tags": tags})
    run.artifact(out)


def _best_before(name: str, verdict: Verdict) -> str:
    """Returns the number of a registered model's best champion so far, if the candidate is another model whose mean is
    not shown to be higher; else an empty text.

    A higher mean in the sample is not enough: by luck one of a row of worse models would have it, now and then.
    """
    champion = registry.to_beat(name)
    if champion is None or any(rule.name == "mean" and rule.interval[0] > 0 for rule in verdict.rules):
        return ""
    best = anchor_of(champion) or champion
    return "" if best.tags.get(registry.DIGEST) == verdict.model_digest else str(best.version)
