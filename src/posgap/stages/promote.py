"""promote: a model that passed the gate becomes the registry's champion."""

import logging
from pathlib import Path

from posgap.distillation.methods import method_of
from posgap.foundation.errors import PosgapError
from posgap.foundation.files import digest_path, write_json
from posgap.foundation.locations import with_uris
from posgap.foundation.printing import RESULT
from posgap.gating.evidence import sweep_record
from posgap.gating.policy import policy_digest, policy_line, registered_policy
from posgap.gating.replay import champion_of, copy_sweeps, judge_again, replay_verdict, require_valid
from posgap.gating.signature import require_signed
from posgap.gating.verdict import GATE_FILE, Verdict, digests
from posgap.measurement.rescoring import swept_examples
from posgap.measurement.sweeps import Evidence
from posgap.stages.frame import stage
from posgap.storage.inputs import read_manifest
from posgap.storage.lineage import ancestors, training_examples
from posgap.tracking import registry
from posgap.tracking.answering import as_swept, require_answers, require_kept_alike
from posgap.tracking.champions import CHALLENGER, CHAMPION
from posgap.tracking.config import PromoteConfig
from posgap.tracking.presentation import OF_RUN, describe_version, short_tags, write_pages
from posgap.tracking.promotion import promote_version
from posgap.tracking.runs import PIPELINE_TAG, Run, pipeline_run
from posgap.tracking.version_record import VersionRecord, anchor_of
from posgap.tracking.version_record import store_record as keep_record

log = logging.getLogger(__name__)
PROMOTION_FILE = "promotion.json"
_OUTCOMES = {
    CHAMPION: "is the champion",
    CHALLENGER: "is the challenger: `posgap approve` makes it the champion",
    "": "is registered; another candidate of this run is better",
}


@stage
def promote(config: PromoteConfig, out: Path, run: Run) -> None:
    """Registers the model with alias `champion` and writes `promotion.json`.

    Where several candidates of one pipeline run are promoted, the alias ends at the best of them, whichever comes
    first. The kept evidence is judged again, by the policy that the name has of its own if there is one, with every
    response scored again. Before an alias moves, the version as the registry gives it back answers some prompts of the
    sweep.

    Raises what the verdict says, and moves no alias, where the model is not admitted; `PosgapError` where sweep and
    model do not belong together, the version answers otherwise, the verdict is on another champion than that of today,
    or a signature is missing that a policy asks for.
    """
    verdict, evidence = replay_verdict(config.gate), Evidence(config.sweep)
    judged, swept_files = verdict.evidence["candidate"].files, sweep_record(evidence).files
    if names := [name for name in judged if judged[name] != swept_files.get(name)]:
        raise PosgapError(f"{config.gate}: judged another sweep than {config.sweep}: {names[0]} differs; gate this one")
    swept = evidence.sweep
    swept.require_model_alone(
        config.sweep, "the registry serves the model alone: sweep without one, gate that and promote it"
    )
    run.label(swept.label)
    if not verdict.passed:
        run.tags({"posgap.promotion": "refused"})
        raise verdict.error(f"{config.model}, and no alias was moved")
    examples = swept_examples(config.sweep, config.examples)
    own = registered_policy(config.name)
    again = judge_again(own or verdict.policy, verdict, config.gate, examples)
    if not again.passed:
        run.tags({"posgap.promotion": "refused"})
        raise again.error(f"{config.model} by the policy of {config.name}, and no alias was moved")
    require_valid(verdict, config.name, [policy for policy in (verdict.policy, own) if policy], config.gate)
    for signed_by in {policy.signed_by for policy in (verdict.policy, own) if policy and policy.signed_by}:
        require_signed(config.gate / GATE_FILE, signed_by, f"the policy of {config.name}")
    if not Path(config.model).is_dir():
        raise PosgapError(f"{config.model}: no such folder; only a model on disk can be promoted")
    model_digest = config.digest("model")
    if not swept.model_digest == verdict.model_digest == model_digest:
        raise PosgapError(f"{config.model}: sweep and gate are of another model; sweep this one and gate it again")
    if training_examples(config.model) != training_examples(config.sweep):
        raise PosgapError(f"{config.sweep}: says otherwise than {config.model} what the model learnt; sweep it again")
    if ancestors(config.model) != swept.ancestors:
        raise PosgapError(
            f"{config.sweep}: says otherwise than {config.model} what the model was made from; sweep it again"
        )
    beaten = champion_of(verdict, config.name, config.gate)

    def require_current() -> None:
        champion_of(verdict, config.name, config.gate, beaten)

    made_by = read_manifest(Path(config.model))
    policy = own or verdict.policy
    record = VersionRecord(
        sweeps=digests(verdict),
        verdict=digest_path(config.gate / GATE_FILE),
        policy=policy_digest(policy),
        base_model=str(made_by.get("config", {}).get("model", with_uris(config.model))),
        ancestors=ancestors(config.model),
        anchor=_best_before(config.name, again),
    )
    write_pages(swept, out)
    copy_sweeps([(registry.PROMOTED_SWEEP, config.sweep)], out)
    shown = short_tags(swept, method_of(config.model), verdict.outcome, policy_line(policy))
    tags = {
        **shown,
        registry.DIGEST: model_digest,
        registry.PROMOTION_RUN: run.required_id(),
        registry.POLICY: policy.model_dump_json(),
        registry.EVIDENCE: keep_record(record, run.id, out),
        **({PIPELINE_TAG: pipeline_run()} if pipeline_run() else {}),
        **({registry.RECIPE: config.recipe} if config.recipe else {}),
        **({registry.DTYPE: swept.asked.dtype} if swept.asked.dtype else {}),
        **({registry.DEVICE: swept.asked.device} if swept.asked.device else {}),
    }
    sweep = out / registry.PROMOTED_SWEEP

    def try_out(stored: Path) -> None:
        require_kept_alike(stored, swept)
        require_answers(stored, config.sweep, examples, config.answers)

    approval = config.approval or any(policy.approval for policy in (verdict.policy, own) if policy)
    place = promote_version(
        config.name,
        Path(config.model),
        tags,
        run,
        sweep,
        require_current,
        try_out,
        approval,
        as_swept(swept),
        config.despite_rollback,
    )
    log.log(RESULT, "%s version %s %s", config.name, place.version, _OUTCOMES[place.alias])
    promotion = "promoted" if place.alias == CHAMPION else "registered"
    run.tags({"posgap.promotion": promotion, "posgap.version": place.version, **{tag: shown[tag] for tag in OF_RUN}})
    write_json(out / PROMOTION_FILE, {"name": config.name, **place._asdict(), "tags": tags})
    run.artifact(out)
    describe_version(config.name, place.version, swept, run)


def _best_before(name: str, verdict: Verdict) -> str:
    """The number of the best champion that a registered model has had, where the candidate is another model, whose mean
    is not shown to be higher; else an empty text.

    That it is higher in the sample is not enough: by luck each of a row of worse models would be, now and then.
    """
    champion = registry.to_beat(name)
    if champion is None or any(rule.name == "mean" and rule.interval[0] > 0 for rule in verdict.rules):
        return ""
    best = anchor_of(champion) or champion
    return "" if best.tags.get(registry.DIGEST) == verdict.model_digest else str(best.version)
