"""Policies: what the gate demands, as a file that nothing outside of it loosens."""

import os
import re
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from functools import partial
from types import SimpleNamespace

import mlflow
import pytest
from refusals import refuses
from written_sweeps import decide, write_sweep
from written_sweeps import promotion as promotion_of

from posgap.cli.main import main
from posgap.foundation.errors import (
    BadOption,
    Contradiction,
    Malformed,
    NotEnoughEvidence,
    NotFound,
    PosgapError,
    TooLarge,
    Unreadable,
)
from posgap.foundation.files import digest_of, digest_path, read_json, write_json
from posgap.foundation.redaction import redact
from posgap.gating.demands import Policy
from posgap.gating.policy import MAX_BYTES, parsed_policy, policy_digest, policy_text, read_policy
from posgap.gating.replay import replay_verdict, require_valid
from posgap.gating.signature import require_signed, sign, signature_file, signing_key
from posgap.gating.verdict import read_verdict
from posgap.storage.inputs import read_manifest
from posgap.tracking.version_record import record_of
from posgap.verbs.promote import promote

promotion = partial(promotion_of, gated_for="")  # of what a gate without the name's policy admitted


def policy_file(folder, text):
    file = folder / f"policy-{len(list(folder.iterdir()))}.yaml"
    file.write_text(text)
    return file


def test_the_default_policy_is_printed_as_a_file_to_begin_with(tmp_path, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["policy"])
    assert stopped.value.code == 0
    assert read_policy(policy_file(tmp_path, capsys.readouterr().out)) == Policy()


def test_a_policy_survives_its_text():
    policy = Policy(version="1.10 of qa", max_gap=2.5, allow=["prompt"], task="qa")
    assert parsed_policy(policy_text(policy).encode(), "p") == policy


def test_what_is_not_written_has_its_default_and_values_are_taken_as_they_stand():
    policy = parsed_policy(b"version: 1.10\nmax_gap: 5  # points\nallow: [prompt, question]\ndata:\n", "p")
    assert policy == Policy(version="1.10", max_gap=5, allow=["prompt", "question"])
    assert parsed_policy(b'{"max_gap": 5}', "p").max_gap == 5
    assert policy_digest(parsed_policy(b"max_gap: 10", "p")) == policy_digest(Policy())
    assert policy_digest(policy) != policy_digest(policy.model_copy(update={"version": "1.11"}))


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("max_hole: 3", "'max_hole'"),
        ("candidate: elsewhere", "'candidate'"),
        ("max_gap: .nan", "`max_gap`"),
        ("max_gap: nan", "`max_gap`"),
        ("max_gap: inf", "`max_gap`"),
        ("mean_tolerance: 1e999", "`mean_tolerance`"),
        ("max_gap: yes", "`max_gap`"),
        ("max_gap: -1", "`max_gap`"),
        ("max_gap: [1, 2]", "`max_gap`"),
        ("max_gap: {}", "`max_gap`"),
        ("least_examples: 0", "`least_examples`"),
        ("task: poetry", "'poetry'"),
        ("data: latest", "`data`"),
        ("allow: [metric]", "`allow.0`"),
        ('version: "a\\nb"', "`version`"),
        ("max_gap: 5\nmax_gap: 100", "'max_gap' is there twice in line 1"),
        ("allow: &a [prompt]\nversion: *a", "in line 2"),
        ("max_gap: !!python/name:os.system x", "`max_gap`"),
        ("? [1, 2]\n: 3", "in line 1"),
        ("- max_gap: 5", ""),
        ("", ""),
        ("max_gap: 5\n---\nmax_gap: 100", "in line 2"),
        ("max_gap: 'x", "in line 1"),
        ("max_gap: \x00", ""),
        ("[" * 5000, ""),
    ],
)
def test_what_is_no_policy_is_refused_in_a_line(tmp_path, text, named):
    file = policy_file(tmp_path, text)
    with refuses(Malformed, named, at=file) as refused:
        read_policy(file)
    assert len(str(refused.value).splitlines()) == 1 and len(str(refused.value)) < 500


def test_a_policy_that_cannot_be_read_is_refused_in_a_line(tmp_path):
    with refuses(NotFound, at="none.yaml"):
        read_policy(tmp_path / "none.yaml")
    with refuses(Unreadable, at=tmp_path):
        read_policy(tmp_path)
    (tmp_path / "bytes.yaml").write_bytes(b"version: \xff")
    with refuses(Malformed, at="bytes.yaml"):
        read_policy(tmp_path / "bytes.yaml")
    with refuses(TooLarge, MAX_BYTES):
        read_policy(policy_file(tmp_path, "#" * (MAX_BYTES + 1)))


@pytest.mark.full
def test_the_gate_judges_by_its_policy_and_records_it(tmp_path, base):
    file = policy_file(tmp_path, "version: strict 1\nmax_gap: 3\nmin_worst: 80\n")
    verdict, rules = decide(tmp_path, write_sweep(tmp_path / "new", [0.97] * 5), base, policy=file)
    assert not verdict.passed and not rules["gap"] and rules["worst"]
    told = read_json(tmp_path / "gate" / "gate.json")
    assert told["policy"]["version"] == "strict 1" and told["policy"]["max_gap"] == 3
    assert told["policy_digest"] == policy_digest(read_policy(file))
    file.unlink()
    assert replay_verdict(tmp_path / "gate") == verdict


@pytest.mark.parametrize(
    ("option", "value", "says"), [("max_gap", 50.0, "3.0"), ("allow", ["prompt"], "[]"), ("least_examples", 1, "100")]
)
def test_no_option_changes_a_policy(tmp_path, base, option, value, says):
    file = policy_file(tmp_path, "max_gap: 3")
    with refuses(BadOption, f"`{option}` {value}", file, says):
        decide(tmp_path, base, base, policy=file, **{option: value})


def test_an_option_may_say_what_the_policy_says(tmp_path, base):
    verdict, _ = decide(tmp_path, base, base, policy=policy_file(tmp_path, "max_gap: 3"), max_gap=3)
    assert verdict.policy.max_gap == 3


@pytest.mark.parametrize(
    ("demand", "complaint"),
    [
        ("task: qa", "task kv, and the policy asks for qa"),
        (f"data: {'a' * 64}", r"examples \w{12}, and the policy asks for aaaaaaaaaaaa"),
    ],
)
def test_a_policy_can_ask_for_a_task_and_for_data(tmp_path, base, demand, complaint):
    new = write_sweep(tmp_path / "new", [0.995] * 5)
    verdict, rules = decide(tmp_path, new, base, policy=policy_file(tmp_path, demand))
    assert verdict.outcome == "not enough evidence" and all(rules.values())
    assert len(verdict.evidence_gaps) == 1 and re.fullmatch(complaint, verdict.evidence_gaps[0])
    assert re.search(complaint, str(verdict.error("it")))
    right, _ = decide(tmp_path, new, base, policy=policy_file(tmp_path, "task: kv"), force=True)
    assert right.passed


def test_another_policy_is_another_gate(tmp_path, base):
    new = write_sweep(tmp_path / "new", [0.995] * 5)
    file = policy_file(tmp_path, "max_gap: 10")
    assert decide(tmp_path, new, base, policy=file)[0].passed
    file.write_text("max_gap: 1")
    assert not decide(tmp_path, new, base, policy=file)[0].passed


def posgap(*arguments):
    """Runs the command line; returns its exit code."""
    with pytest.raises(SystemExit) as stopped:
        main([str(argument) for argument in arguments])
    return stopped.value.code


def registered(tmp_path, text, name="tiny"):
    """Gives a registered model a policy."""
    assert posgap("policy", name, policy_file(tmp_path, text)) == 0


@pytest.mark.usefixtures("mlflow_store")
def test_a_registered_model_has_a_policy_of_its_own(tmp_path, capsys):
    assert posgap("policy", "tiny") == 2
    assert "tiny: has no policy in MLflow; `posgap policy tiny FILE` gives it one" in capsys.readouterr().err
    registered(tmp_path, "version: 1\nmax_gap: 3")
    registered(tmp_path, "version: 2\nmax_gap: 4")
    assert posgap("policy", "tiny") == 0
    assert parsed_policy(capsys.readouterr().out.encode(), "shown") == Policy(version="2", max_gap=4)


@pytest.mark.parametrize("name", ["x' or name like '%", "a/b", "", " x", "x" * 201])
def test_no_name_says_something_else_to_mlflow(tmp_path, name, capsys):
    assert posgap("policy", name, policy_file(tmp_path, "max_gap: 3")) == 2
    complaint = "write at most 200 letters" if name else "name the registered model that gets this policy"
    assert complaint in capsys.readouterr().err
    assert posgap("policy", name) == (2 if name else 0)  # without a name it is that of a gate without options


@pytest.mark.full
@pytest.mark.usefixtures("mlflow_store")
def test_the_gate_of_a_registered_model_judges_by_its_policy(tmp_path, base):
    registered(tmp_path, "version: strict\nmax_gap: 1")
    new = write_sweep(tmp_path / "new", [0.995] * 5)
    by_name = decide(tmp_path, new, base, name="tiny")[0]
    assert by_name.outcome == "not enough evidence" and by_name.policy.version == "strict"
    # Another name has none: the options decide.
    assert decide(tmp_path, new, base, name="other")[0].policy == Policy()
    # The policy is asked for again each time.
    registered(tmp_path, "version: lax")
    assert decide(tmp_path, new, base, name="tiny")[0].passed


@pytest.mark.usefixtures("mlflow_store")
def test_neither_option_nor_file_loosens_a_registered_policy(tmp_path, base):
    registered(tmp_path, "max_gap: 2")
    with refuses(BadOption, "`max_gap` 100.0", "2.0"):
        decide(tmp_path, base, base, name="tiny", max_gap=100)
    with refuses(BadOption, "--policy", "tiny"):
        decide(tmp_path, base, base, name="tiny", policy=policy_file(tmp_path, "max_gap: 100"))


@pytest.mark.full
@pytest.mark.usefixtures("mlflow_store")
def test_what_a_lax_gate_admitted_is_not_promoted_to_a_strict_name(tmp_path, base, model_folder):
    registered(tmp_path, "version: strict\nmax_gap: 1")
    admitted = promotion(tmp_path, "admitted", model_folder, base)
    with refuses(NotEnoughEvidence, "policy of tiny", ": gap "):
        promote(admitted)
    assert not mlflow.MlflowClient().search_model_versions("name='tiny'")
    registered(tmp_path, "version: strict\nmax_gap: 1\ntask: qa")
    with refuses(NotEnoughEvidence, "task kv", "qa"):
        promote(admitted)


@pytest.mark.usefixtures("mlflow_store")
@pytest.mark.parametrize("tag", ['{"max_hole": 1}', "max_gap: .nan", "[1]", "x" * 5000])
def test_a_policy_that_was_spoilt_in_mlflow_admits_nobody(tmp_path, base, model_folder, tag):
    registered(tmp_path, "max_gap: 2")
    mlflow.MlflowClient().set_registered_model_tag("tiny", "posgap.policy", tag)
    with refuses(Malformed, at="policy of tiny in MLflow"):
        promote(promotion(tmp_path, "admitted", model_folder, base))
    with refuses(Malformed, at="policy of tiny in MLflow"):
        decide(tmp_path, base, base, name="tiny")


@pytest.mark.full
@pytest.mark.usefixtures("mlflow_store")
def test_a_version_says_by_which_policy_and_evidence_it_was_admitted(tmp_path, base, model_folder):
    registered(tmp_path, "version: 7\nmax_gap: 8\nallow: [trial]")
    admitted = promotion(tmp_path, "admitted", model_folder, base)
    promote(admitted)
    version = mlflow.MlflowClient().get_model_version_by_alias("tiny", "champion")
    tags, record = version.tags, record_of(version)
    policy = Policy(version="7", max_gap=8, allow=["trial"])
    assert parsed_policy(tags["posgap.policy"].encode(), "tag") == policy
    assert record.policy == policy_digest(policy) and tags["policy"] == f"7 ({record.policy[:12]})"
    assert tags["posgap.evidence"] == digest_path(admitted.out / "evidence.json")
    assert record.sweeps.keys() == {"candidate", "base"}
    assert record.candidate_files["predictions.jsonl"] == digest_path(admitted.sweep / "predictions.jsonl")
    assert record.sweeps["base"]["sweep.json"] == digest_path(base / "sweep.json")
    assert record.sweeps["candidate"]["model"] == tags["posgap.model_digest"]
    assert record.sweeps["candidate"]["settings"] == digest_of({})
    assert record.verdict == digest_path(admitted.gate / "gate.json")


@pytest.fixture
def signed(tmp_path, monkeypatch, capsys):
    """A name whose policy asks for a signature, with the key for it in the environment; its public part."""
    assert posgap("policy", "--keygen", tmp_path / "key") == 0
    line = capsys.readouterr().out
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600
    registered(tmp_path, f"{line}allow: [trial]")
    monkeypatch.setenv("POSGAP_SIGNING_KEY", (tmp_path / "key").read_text())
    return line.split()[1]


@pytest.mark.full
@pytest.mark.usefixtures("mlflow_store")
def test_only_a_signed_verdict_promotes(tmp_path, base, model_folder, signed):
    admitted = promotion(tmp_path, "admitted", model_folder, base, gated_for="tiny")
    signature, verdict = admitted.gate / "gate.json.sig", admitted.gate / "gate.json"
    assert read_manifest(admitted.gate)["config"]["signer"] == signed
    right = signature.read_text()
    signature.unlink()
    with refuses(PosgapError, signed, at="gate.json"):
        promote(admitted)
    for wrong in ("", "x", right[:40], "A" * 86 + "==", right.replace(right[5], "A" if right[5] != "A" else "B", 1)):
        signature.write_text(wrong)
        with refuses(Contradiction, signed, at="gate.json.sig"):
            promote(admitted)
    signature.write_text(right)
    verdict.write_text(verdict.read_text() + "\n")  # the same verdict in other bytes
    with refuses(Contradiction, signed, at="gate.json.sig"):
        promote(admitted)
    verdict.write_text(verdict.read_text()[:-1])
    promote(admitted)
    assert mlflow.MlflowClient().get_model_version_by_alias("tiny", "champion")


@pytest.mark.usefixtures("mlflow_store")
def test_the_signature_of_another_promotes_nothing(tmp_path, base, model_folder, signed, monkeypatch):
    posgap("policy", "--keygen", tmp_path / "stranger")
    monkeypatch.setenv("POSGAP_SIGNING_KEY", (tmp_path / "stranger").read_text())
    with refuses(Contradiction, signed, at="gate.json.sig"):
        promote(promotion(tmp_path, "other", model_folder, base, gated_for="tiny"))
    with refuses(BadOption, "`signer`", signed):
        decide(tmp_path, base, base, signer=signed)


@pytest.mark.full
@pytest.mark.usefixtures("mlflow_store")
def test_a_signature_is_of_one_verdict_as_it_was_written(tmp_path, base, model_folder, signed):
    one, other = (promotion(tmp_path, name, model_folder, base, gated_for="tiny") for name in ("one", "other"))
    file, signature = one.gate / "gate.json", one.gate / "gate.json.sig"
    written, right, known = file.read_bytes(), signature.read_bytes(), read_json(file)
    # Each of these follows from the kept sweeps, so that the signature alone tells.
    unsigned_policy = Policy(**known["policy"] | {"signed_by": ""})
    lax = {"policy": unsigned_policy.model_dump(mode="json"), "policy_digest": policy_digest(unsigned_policy)}
    for change in ({"judged_at": "2099-01-01T00:00:00+00:00"}, lax):
        write_json(file, known | change)
        replay_verdict(one.gate)
        with refuses(Contradiction, signed, at="gate.json.sig"):
            promote(one)
        signature.unlink()
        with refuses(PosgapError, signed, at="gate.json"):
            promote(one)
        signature.write_bytes(right)
    file.write_bytes(written)
    require_signed(file, signed, "p")
    other_file = other.gate / "gate.json"
    write_json(other_file, read_json(other_file) | {"judged_at": "2020-01-01T00:00:00+00:00"})
    sign(other_file, signing_key())
    signature.write_bytes((other.gate / "gate.json.sig").read_bytes())
    with refuses(Contradiction, signed, at="gate.json.sig"):
        promote(one)


@pytest.mark.full
@pytest.mark.usefixtures("mlflow_store")
def test_a_policy_that_came_after_a_signed_verdict_counts(tmp_path, base, model_folder, signed, capsys):
    admitted = promotion(tmp_path, "admitted", model_folder, base, gated_for="tiny")
    registered(tmp_path, f"signed_by: {signed}\nallow: [trial]\nmin_worst: 99.9")
    with refuses(NotEnoughEvidence, "policy of tiny", ": worst "):
        promote(admitted)
    posgap("policy", "--keygen", tmp_path / "newer")
    newer = capsys.readouterr().out.split()[-1]
    registered(tmp_path, f"signed_by: {newer}\nallow: [trial]")
    with refuses(Contradiction, newer, at="gate.json.sig"):
        promote(admitted)


def test_a_signature_is_by_one_key_of_one_file(tmp_path, monkeypatch, capsys):
    """The files need be no verdicts for that."""
    keys = {}
    for who in ("ours", "stranger"):
        posgap("policy", "--keygen", tmp_path / who)
        keys[who] = capsys.readouterr().out.split()[-1]
    one, other = tmp_path / "one.json", tmp_path / "other.json"
    for file in (one, other):
        file.write_text(file.name)
        monkeypatch.setenv("POSGAP_SIGNING_KEY", (tmp_path / "ours").read_text())
        sign(file, signing_key())
    require_signed(one, keys["ours"], "p")
    with refuses(Contradiction, keys["stranger"], at="one.json.sig"):
        require_signed(one, keys["stranger"], "p")
    right = signature_file(one).read_bytes()
    signature_file(one).write_bytes(signature_file(other).read_bytes())
    with refuses(Contradiction, keys["ours"], at="one.json.sig"):
        require_signed(one, keys["ours"], "p")
    signature_file(one).write_bytes(right)
    one.write_text("one.json ")
    with refuses(Contradiction, keys["ours"], at="one.json.sig"):
        require_signed(one, keys["ours"], "p")
    signature_file(one).unlink()
    with refuses(PosgapError, keys["ours"], at="one.json"):
        require_signed(one, keys["ours"], "p")


@pytest.mark.full
@pytest.mark.usefixtures("mlflow_store")
def test_a_verdict_for_no_name_does_not_get_one_in_an_editor(tmp_path, base, model_folder, signed, monkeypatch):
    """By a policy without a signature it was admitted; what the registered name asks for counts."""
    monkeypatch.delenv("POSGAP_SIGNING_KEY")
    unnamed = promotion(tmp_path, "unnamed", model_folder, base)
    file = unnamed.gate / "gate.json"
    write_json(file, read_json(file) | {"name": "tiny"})
    with refuses(PosgapError, signed, at="gate.json"):
        promote(unnamed)


@pytest.mark.full
@pytest.mark.usefixtures("mlflow_store")
def test_a_verdict_is_for_one_name(tmp_path, base, model_folder, signed):
    other = promotion(tmp_path, "other", model_folder, base, gated_for="another")
    assert read_verdict(other.gate).name == "another"
    with refuses(PosgapError, "another", "--name tiny", at="gate-other"):
        promote(other)
    unnamed = promotion(tmp_path, "unnamed", model_folder, base, gated_for="")
    with refuses(PosgapError, "--name tiny", at="gate-unnamed"):
        promote(unnamed)


@pytest.mark.parametrize(
    ("judged_at", "most", "kind", "named"),
    [
        (timedelta(days=-2.5), 2.4, PosgapError, "2.4 days"),
        (timedelta(days=-2.5), 2.6, None, ""),
        (timedelta(days=-9999), 0, None, ""),
        (timedelta(hours=1), 2, PosgapError, "2 days"),
        ("", 2, Malformed, ""),
        ("yesterday", 2, Malformed, ""),
        ("2026-11-24T10:00:00", 2, Malformed, ""),  # in which zone?
    ],
)
def test_a_verdict_may_end(judged_at, most, kind, named):
    if isinstance(judged_at, timedelta):
        judged_at = (datetime.now(UTC) + judged_at).isoformat(timespec="seconds")
    verdict = SimpleNamespace(name="tiny", judged_at=judged_at)
    policies = [Policy(max_age_days=most), Policy(), Policy(max_age_days=most and 9)]
    with refuses(kind, named, at="g") if kind else nullcontext():
        require_valid(verdict, "tiny", policies, "g")


@pytest.mark.usefixtures("mlflow_store")
def test_a_gate_is_signed_when_the_key_comes_later(tmp_path, base, signed, monkeypatch):
    key = os.environ["POSGAP_SIGNING_KEY"]
    monkeypatch.delenv("POSGAP_SIGNING_KEY")
    new = write_sweep(tmp_path / "new", [0.995] * 5)
    decide(tmp_path, new, base)
    assert not (tmp_path / "gate" / "gate.json.sig").exists()
    monkeypatch.setenv("POSGAP_SIGNING_KEY", key)
    decide(tmp_path, new, base)
    assert (tmp_path / "gate" / "gate.json.sig").exists()


@pytest.mark.parametrize("key", ["x", "ed25519:" + "A" * 43 + "=", "ed25519-private:" + "A" * 42, "ed25519-private:é"])
def test_what_is_no_key_is_refused_and_not_shown(tmp_path, base, monkeypatch, key):
    monkeypatch.setenv("POSGAP_SIGNING_KEY", key)
    with refuses(Malformed, at="POSGAP_SIGNING_KEY") as refused:
        decide(tmp_path, base, base)
    assert key == "x" or key not in str(refused.value)


def test_a_key_is_of_no_name(tmp_path, capsys):
    assert posgap("policy", "tiny", "--keygen", tmp_path / "key") == 2
    assert "`keygen` makes a key for any policy; leave the name out" in capsys.readouterr().err
    assert not (tmp_path / "key").exists()


def test_a_private_key_is_never_replaced_nor_taken_for_a_public_one(tmp_path, capsys):
    assert posgap("policy", "--keygen", tmp_path / "key") == 0
    key = (tmp_path / "key").read_text().strip()
    assert posgap("policy", "--keygen", tmp_path / "key") == 2
    assert "a key is never replaced" in capsys.readouterr().err
    with refuses(Malformed, "`signed_by`", at="p"):
        parsed_policy(f"signed_by: {key}".encode(), "p")


def test_a_signing_key_is_shown_nowhere(tmp_path, monkeypatch):
    posgap("policy", "--keygen", tmp_path / "key")
    key = (tmp_path / "key").read_text().strip()
    monkeypatch.setenv("POSGAP_SIGNING_KEY", key)
    assert redact(f"it is {key}!") == "it is ***!"


@pytest.mark.parametrize(
    "line",
    [
        'max_gap: "5"',
        "max_gap: 010",
        "max_gap: 1_0",
        "least_examples: '300'",
        "max_gap: +5",
        "approval: 1",
        "approval: 'true'",
    ],
)
def test_a_number_that_could_be_read_otherwise_is_refused(tmp_path, line):
    file = tmp_path / "policy.yaml"
    file.write_text(f"{line}\n")
    with refuses(Malformed, f"`{line.partition(':')[0]}`", at=file):
        read_policy(file)


@pytest.mark.parametrize(
    ("line", "value"), [("max_gap: 5.5", 5.5), ("mean_tolerance: -1e-1", -0.1), ("approval: true", True)]
)
def test_numbers_as_json_has_them_are_read(tmp_path, line, value):
    file = tmp_path / "policy.yaml"
    file.write_text(f"{line}\n")
    assert getattr(read_policy(file), line.partition(":")[0]) == value
