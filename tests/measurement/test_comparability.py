"""Whether two sweeps were asked alike: everything that is asked, alone and together, and the pairing of examples."""

import copy
from itertools import combinations

import pytest
from written_sweeps import ASKED, N, write_sweep

from posgap.foundation.errors import PosgapError
from posgap.gating.evidence import ANCHOR, BASE, DISTRACTORS
from posgap.gating.trial import REFERENCE_TRIAL, TRIAL
from posgap.measurement.comparability import ALLOWABLE, align_comparable, list_differences
from posgap.measurement.evidence import Evidence

OTHERWISE = {
    "task": {"task": "qa"},
    "metric": {"metric": "sub_em"},
    "n_docs": {"n_docs": 9},
    "examples": {"examples_digest": "f"},
    "placements": {"placements": [[1], [2], [3], [4], [6]]},
    "prompt": {"prompt": "q"},
    "template": {"template": "t"},
    "question": {"question": "before"},
    "shuffle": {"shuffle": 3},
    "max_new_tokens": {"max_new_tokens": 5},
    "decoding": {"decoding": "sampled"},
    "system": {"system": "Be brief."},
    "template_args": {"template_args": {"enable_thinking": False}},
    "max_thinking_tokens": {"max_thinking_tokens": 64},
    "stop": {"stop": ["Question:"]},
    "date": {"date": "2026-11-22"},
    "body": {"body": {"reasoning_effort": "low"}},
    "dtype": {"dtype": "bfloat16"},
    "backend": {"device": "cuda"},
}


@pytest.fixture(scope="module")
def swept(tmp_path_factory) -> Evidence:
    return Evidence(write_sweep(tmp_path_factory.mktemp("sweeps") / "a", [0.95, 0.6, 0.5, 0.6, 0.9]))


def asked_otherwise(evidence: Evidence, *names: str) -> Evidence:
    """The same sweep, had it been asked otherwise in these things."""
    changed = {key: value for name in names for key, value in OTHERWISE[name].items()}
    in_prompts = {key: changed.pop(key) for key in ASKED.model_dump() if key in changed}
    other = copy.copy(evidence)
    other.path = evidence.path.with_name("b")
    other.sweep = evidence.sweep.model_copy(
        update=changed | {"asked": evidence.sweep.asked.model_copy(update=in_prompts)}
    )
    return other


@pytest.mark.parametrize("name", OTHERWISE)
def test_everything_that_is_asked_is_compared_and_only_what_may_be_meant_is_allowed(swept, name):
    other = asked_otherwise(swept, name)
    assert list_differences(other.sweep, swept.sweep) == list_differences(swept.sweep, other.sweep) == [name]
    with pytest.raises(PosgapError) as refused:
        align_comparable(other, swept, OTHERWISE.keys() - {name})
    assert ("--allow" in str(refused.value)) == (name in ALLOWABLE)
    ordered, allowed = align_comparable(other, swept, [name])
    assert allowed == [name] and ordered.path == other.path


def test_two_differences_are_both_named_and_refused_unless_both_are_allowed(swept):
    for pair in combinations(OTHERWISE, 2):
        other = asked_otherwise(swept, *pair)
        assert align_comparable(other, swept, OTHERWISE)[1] == list(pair)
        for name, unnamed in (pair, pair[::-1]):
            with pytest.raises(PosgapError, match=rf": {unnamed} \("):
                align_comparable(other, swept, [name])


def test_the_refusal_says_what_each_sweep_was_asked_and_how_to_mean_it(swept):
    other = asked_otherwise(swept, "template", "question", "shuffle")
    said = r"question \(before, .*after\), shuffle \(3, .*0\); .*--allow template,question,shuffle$"
    with pytest.raises(PosgapError, match=f"^{other.path} and {swept.path}: .*: {said}"):
        align_comparable(other, swept, ["template"])
    of_asking = [name for name in ALLOWABLE if name not in (ANCHOR, BASE, TRIAL, REFERENCE_TRIAL, DISTRACTORS)]
    with pytest.raises(PosgapError, match=f"--allow {','.join(of_asking)}$"):
        align_comparable(asked_otherwise(swept, *of_asking), swept)
    with pytest.raises(PosgapError, match=r"n_docs \(9, .*5\), shuffle \(3, .*0\);(?!.*--allow)"):
        align_comparable(asked_otherwise(swept, "n_docs", "shuffle"), swept)


def test_nothing_is_allowed_unless_it_is_named(swept):
    assert list_differences(swept.sweep, swept.sweep) == []
    assert align_comparable(swept, swept)[1] == []
    with pytest.raises(PosgapError, match=r"prompt \(q, .*p\)"):
        align_comparable(asked_otherwise(swept, "prompt"), swept)


def test_examples_stand_in_the_order_of_the_reference(swept):
    order = [*range(1, N, 2), *range(0, N, 2)]
    turned = Evidence(write_sweep(swept.path.with_name("turned"), [0.95, 0.6, 0.5, 0.6, 0.9], order=order))
    assert turned.contents != swept.contents
    ordered, _ = align_comparable(turned, swept)
    assert ordered.contents == swept.contents and (ordered.correct == swept.correct).all()
    back, _ = align_comparable(swept, turned)
    assert back.contents == turned.contents and (back.correct == turned.correct).all()


def test_stop_strings_count_unless_the_metric_reads_no_further(swept):
    def differences(metric, stop):
        first = swept.sweep.model_copy(update={"metric": metric})
        return list_differences(
            first.model_copy(update={"asked": first.asked.model_copy(update={"stop": stop})}), first
        )

    assert differences("litm", ["\n"]) == []
    assert (
        differences("litm", ["\n", "x"])
        == differences("sub_em", ["\n"])
        == differences("of_a_package", ["\n"])
        == ["stop"]
    )
