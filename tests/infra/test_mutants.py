"""The mutants that are made are those by which tests were once found wanting."""

import json
import os
import subprocess
import sys

import mutants
import pytest
from mutmut.mutation.file_mutation import mutate_file_contents
from places import ROOT

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
        for file, _, test in (judge.partition("::") for judge in entry["judges"]):
            assert f"def {test.partition('[')[0]}" in (ROOT / "tests" / file).read_text(), test
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


RULES = """
def here(a, b):
    return a + b

def forked(a, b):
    return a + b

def started(a, b):
    return a + b
"""
JUDGES = """
import multiprocessing, subprocess, sys
from rules import rules

def test_here():
    assert rules.here(1, 2) == 3

def test_forked():
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.apply(rules.forked, (1, 2)) == 3

def test_started(tmp_path):
    asked = [sys.executable, "-c", "from rules.rules import started; print(started(1, 2))"]
    assert subprocess.check_output(asked, cwd=tmp_path) == b"3\\n"
"""
TRIAL = """
import json, pathlib
import mutants
mutants.ROOT, mutants.SOURCE = pathlib.Path.cwd(), pathlib.Path("src/rules")
mutants.WORK = mutants.ROOT / "work"
mutants.LIST = {"rules.py": {"judges": ["test_rules.py"], "every_judge": True}}
mutants.mutate("rules.py", [], 1)
(mutants.ROOT / "tried.json").write_text(json.dumps([[each.text, each.status] for each in mutants.tried("rules.py")]))
"""


@pytest.mark.nightly
def test_every_test_judges_what_only_processes_call_that_a_test_starts(tmp_path):
    for name, text in {
        "src/rules/__init__.py": "",
        "src/rules/rules.py": RULES,
        "tests/test_rules.py": JUDGES,
        "pyproject.toml": '[tool.mutmut]\nsource_paths = ["src"]\nprocess_isolation = "forkserver"\n',
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    paths = {"PYTHONPATH": f"{ROOT / 'tests' / 'helpers'}{os.pathsep}{tmp_path / 'src'}"}
    subprocess.run([sys.executable, "-c", TRIAL], cwd=tmp_path, env=os.environ | paths, check=True)
    tried = json.loads((tmp_path / "tried.json").read_text())
    statuses = {(text.partition(":")[0], status) for text, status in tried}
    assert statuses == {(function, "killed") for function in ("here", "forked", "started")}
