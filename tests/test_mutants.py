"""The mutants that are made are those by which tests were once found wanting."""

import mutants
import pytest
from conftest import ROOT
from mutmut.mutation.file_mutation import mutate_file_contents

CODE = """
class Case:
    base: Sweep
    candidate: Sweep
    seed: int

def loss(teacher: Tensor, student: Tensor):
    return kl(teacher.float(), student)

def judge(case, paths):
    old, new = map(read, paths)
    new.require(case.base)
    meet()
    if old.best[1]:
        return sorted(min(each) for each in old if each)
"""


def mutants_of(code: str) -> set[str]:
    """The lines that mutants of the code have and it has not."""
    lines = mutate_file_contents("x.py", code).code.splitlines()
    return {line.strip() for line in lines} - {line.strip() for line in code.splitlines()}


@pytest.mark.parametrize(
    "line",
    [
        "return kl(teacher, student)",
        "return kl(student.float(), student)",
        "return kl(teacher.float(), teacher)",
        "new.require(case.candidate)",
        "old.require(case.base)",
        "new",
        "None",
        "if old.best[0]:",
        "if new.best[1]:",
        "if not (old.best[1]):",
        "return sorted(max(each) for each in old if each)",
        "return sorted(min(each) for each in old if not (each))",
        "return (min(each) for each in old if each)",
    ],
)
def test_the_changes_that_mutmut_leaves_out_are_made(line):
    assert line in mutants_of(CODE)


def test_names_that_are_bound_and_fields_without_a_twin_stay():
    assert not {"new, new = map(read, paths)", "old, old = map(read, paths)"} & mutants_of(CODE)
    assert "each.base = case.seed" not in mutants_of("def f(case):\n    each.seed = case.seed\n")


def test_every_module_in_the_list_has_its_judges_and_every_exception_its_reason():
    for module, entry in mutants.LIST.items():
        assert (ROOT / mutants.SOURCE / module).is_file() and entry["judges"]
        assert all((ROOT / "tests" / judge.partition("::")[0]).is_file() for judge in entry["judges"])
        for accepted in entry.get("equivalent", []):
            assert accepted.keys() == {"why", "mutants"} and accepted["why"] and accepted["mutants"]


def test_a_survivor_fails_and_so_does_one_that_is_accepted_and_did_not_survive(monkeypatch):
    fine = mutants.Mutant("m.x_f__mutmut_1", "killed", "f: return 2", "")
    even = mutants.Mutant("m.x_f__mutmut_2", "survived", "f: return 1.0", "-    return 1\n+    return 1.0")
    untested = mutants.Mutant("m.x_g__mutmut_1", "no tests", "g: return 0", "+    return 0")
    monkeypatch.setattr(mutants, "LIST", {"m.py": {"equivalent": [{"why": "1 is 1.0", "mutants": ["f: return 1.0"]}]}})
    assert mutants.failures("m.py", [fine, even], whole=True) == []
    assert mutants.failures("m.py", [fine, untested], whole=False) == ["no tests: g: return 0\n+    return 0"]
    assert mutants.failures("m.py", [fine], whole=True) == ["accepted in mutants.toml, but no survivor: f: return 1.0"]
