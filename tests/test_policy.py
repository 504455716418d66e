"""Policies: what the gate demands, as a file that nothing outside of it loosens."""

import pytest
from test_gate import base, decide, write_sweep  # noqa: F401  `base` is a fixture

from posgap.cli import main
from posgap.config import Policy
from posgap.errors import PosgapError
from posgap.files import read_json
from posgap.gating.policy import MOST_BYTES, parsed_policy, policy_digest, policy_text, read_policy
from posgap.gating.replay import replayed


def policy_file(folder, text):
    file = folder / f"policy-{len(list(folder.iterdir()))}.yaml"
    file.write_text(text)
    return file


def test_the_default_policy_is_printed_as_a_file_to_begin_with(tmp_path, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["policy", "default"])
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
    ("text", "complaint"),
    [
        ("max_hole: 3", "'max_hole' is nothing that a policy says; there are version, task, "),
        ("candidate: elsewhere", "'candidate' is nothing that a policy says"),
        ("max_gap: .nan", "field `max_gap`: "),
        ("max_gap: nan", "field `max_gap`: "),
        ("max_gap: inf", "field `max_gap`: "),
        ("mean_tolerance: 1e999", "field `mean_tolerance`: "),
        ("max_gap: yes", "field `max_gap`: "),
        ("max_gap: -1", "field `max_gap`: "),
        ("max_gap: [1, 2]", "field `max_gap`: "),
        ("max_gap: {}", "field `max_gap`: "),
        ("least_examples: 0", "field `least_examples`: "),
        ("task: poetry", "unknown task 'poetry'"),
        ("data: latest", "field `data`: "),
        ("allow: [metric]", "field `allow.0`: "),
        ('version: "a\\nb"', "field `version`: "),
        ("max_gap: 5\nmax_gap: 100", "not YAML: 'max_gap' is there twice in line 1"),
        ("allow: &a [prompt]\nversion: *a", "not YAML: an alias, which a policy cannot have in line 2"),
        ("max_gap: !!python/name:os.system x", "field `max_gap`: "),
        ("? [1, 2]\n: 3", "not YAML: found unhashable key in line 1"),
        ("- max_gap: 5", "no policy: write lines like `max_gap: 10`"),
        ("", "no policy: write lines"),
        ("max_gap: 5\n---\nmax_gap: 100", "not YAML: but found another document in line 2"),
        ("max_gap: 'x", "not YAML: found unexpected end of stream"),
        ("max_gap: \x00", "not YAML: "),
        ("[" * 5000, "not YAML: nested too deep"),
        ("#" * (MOST_BYTES + 1), f"more than {MOST_BYTES} bytes"),
    ],
)
def test_what_is_no_policy_is_refused_in_a_line(tmp_path, text, complaint):
    file = policy_file(tmp_path, text)
    with pytest.raises(PosgapError) as refused:
        read_policy(file)
    assert str(refused.value).startswith(f"{file}: ") and complaint in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1 and len(str(refused.value)) < 500


def test_a_policy_that_cannot_be_read_is_refused_in_a_line(tmp_path):
    with pytest.raises(PosgapError, match="no such file"):
        read_policy(tmp_path / "none.yaml")
    with pytest.raises(PosgapError, match="cannot be read"):
        read_policy(tmp_path)
    (tmp_path / "bytes.yaml").write_bytes(b"version: \xff")
    with pytest.raises(PosgapError, match="bytes.yaml: not YAML"):
        read_policy(tmp_path / "bytes.yaml")


def test_the_gate_judges_by_its_policy_and_records_it(tmp_path, base):  # noqa: F811
    file = policy_file(tmp_path, "version: strict 1\nmax_gap: 3\nmin_worst: 80\n")
    verdict, rules = decide(tmp_path, write_sweep(tmp_path / "new", [0.97] * 5), base, policy=file)
    assert not verdict.passed and not rules["gap"] and rules["worst"]
    told = read_json(tmp_path / "gate" / "gate.json")
    assert told["policy"]["version"] == "strict 1" and told["policy"]["max_gap"] == 3
    assert told["policy_digest"] == policy_digest(read_policy(file))
    file.unlink()
    assert replayed(tmp_path / "gate") == verdict


@pytest.mark.parametrize(
    ("option", "value", "says"), [("max_gap", 50.0, "3.0"), ("allow", ["prompt"], "[]"), ("least_examples", 1, "100")]
)
def test_no_option_changes_a_policy(tmp_path, base, option, value, says):  # noqa: F811
    file = policy_file(tmp_path, "max_gap: 3")
    with pytest.raises(PosgapError) as refused:
        decide(tmp_path, base, base, policy=file, **{option: value})
    name = option.replace("_", "-")
    assert str(refused.value).startswith(f"--{name} {value}: {file} says {says}, which no option changes; leave ")


def test_an_option_may_say_what_the_policy_says(tmp_path, base):  # noqa: F811
    verdict, _ = decide(tmp_path, base, base, policy=policy_file(tmp_path, "max_gap: 3"), max_gap=3)
    assert verdict.policy.max_gap == 3


@pytest.mark.parametrize(
    ("demand", "complaint"),
    [
        ("task: qa", "task kv, and the policy asks for qa"),
        (f"data: {'a' * 64}", "examples e, and the policy asks for aaaaaaaaaaaa"),
    ],
)
def test_a_policy_can_ask_for_a_task_and_for_data(tmp_path, base, demand, complaint):  # noqa: F811
    new = write_sweep(tmp_path / "new", [0.995] * 5)
    verdict, rules = decide(tmp_path, new, base, policy=policy_file(tmp_path, demand))
    assert verdict.outcome == "not enough evidence" and all(rules.values()) and verdict.lacking == [complaint]
    assert complaint in str(verdict.error("it"))
    right, _ = decide(tmp_path, new, base, policy=policy_file(tmp_path, "task: kv"), force=True)
    assert right.passed


def test_another_policy_is_another_gate(tmp_path, base):  # noqa: F811
    new = write_sweep(tmp_path / "new", [0.995] * 5)
    file = policy_file(tmp_path, "max_gap: 10")
    assert decide(tmp_path, new, base, policy=file)[0].passed
    file.write_text("max_gap: 1")
    assert not decide(tmp_path, new, base, policy=file)[0].passed
