"""Mutants: small wrong changes to code that decides, each of which a test has to notice.

`make mutants` lets mutmut change the modules that `mutants.toml` lists, one change at a time, and runs the test files
that judge the module. It ends with exit code 1 where a mutant survives that the file does not accept, with the reason
why it is no error, and where the file accepts one that there is no longer. `SAMPLE=10` tries ten mutants a module
instead of all, `MODULES="losses curves"` some modules, `SURVIVORS=1` what survived the last time.

mutmut's own changes leave out some by which tests were found wanting: a call that is dropped, a condition that is
turned round, a value that is taken from the other of two that are alike. They are added below.

mutmut credits a test with the functions that its own process calls. Where processes that tests start do the work,
`every_judge` has all tests of a module judge each of its mutants.
"""

import argparse
import contextlib
import dataclasses
import gc
import importlib
import os
import random
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import libcst as cst
import libcst.matchers as m
from mutmut import configuration
from mutmut.mutation.data import SourceFileMutationData
from mutmut.mutation.diff_apply import get_diff_for_mutant
from mutmut.mutation.file_mutation import mutate_file_contents
from mutmut.mutation.mutators import mutation_operators
from mutmut.runners.harness import PytestRunner
from mutmut.state import state
from mutmut.stats import status_by_exit_code
from mutmut.utils.format_utils import (
    get_mutant_name,
    mangled_name_from_mutant_name,
    orig_function_and_class_names_from_key,
)

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / "build" / "mutants"
SOURCE = Path("src/posgap")
LIST = tomllib.loads((ROOT / "tests" / "helpers" / "mutants.toml").read_text())
NOTICED = {"killed", "timeout", "segfault"}

# What is added to mutmut's changes

IMPORTED = {"torch", "np", "F", "files", "shutil", "random", "special", "statistics", "tables"}
SWAPPED = {"min": "max", "max": "min", "any": "all", "all": "any", "argmax": "argmin", "argmin": "argmax"}
UNWRAPPED = {"sorted", "set", "abs", "round"}


def dropped_call(node: cst.Call) -> Iterator[cst.BaseExpression]:
    """`x.float()` becomes `x`, and `sorted(x)` becomes `x`."""
    if isinstance(node.func, cst.Attribute) and not (
        isinstance(node.func.value, cst.Name) and node.func.value.value in IMPORTED
    ):
        yield node.func.value
    elif isinstance(node.func, cst.Name) and node.func.value in UNWRAPPED and node.args and not node.args[0].star:
        yield node.args[0].value.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])


def dropped_statement(node: cst.Expr) -> Iterator[cst.Expr]:
    """`meet()` is not called, where `dropped_call` leaves it."""
    if isinstance(node.value, cst.Call) and not list(dropped_call(node.value)):
        yield node.with_changes(value=cst.Name("None"))


def turned_condition(node: cst.If | cst.While | cst.CompIf) -> Iterator[cst.CSTNode]:
    """`if c` becomes `if not c`."""
    turned = cst.UnaryOperation(
        cst.Not(whitespace_after=cst.SimpleWhitespace(" ")),
        node.test.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()]),
    )
    yield node.with_changes(test=turned)


def opposite(node: cst.Name) -> Iterator[cst.Name]:
    """`min` becomes `max`."""
    if node.value in SWAPPED:
        yield node.with_changes(value=SWAPPED[node.value])


def one_less(node: cst.Integer) -> Iterator[cst.Integer]:
    """mutmut itself makes numbers greater."""
    if node.evaluated_value > 0:
        yield node.with_changes(value=repr(node.evaluated_value - 1))


class Twins:
    """`old.sweep` becomes `new.sweep`, and `case.base` becomes `case.candidate`: of parameters or fields of one type,
    or names bound together, another is read."""

    def seek(self, module: cst.Module) -> tuple[()]:
        """Remembers what the module reads that has twins; changes nothing itself."""
        self.of_name: dict[cst.Name, str] = {}
        self.of_field: dict[str, str] = {}
        for function in m.findall(module, m.FunctionDef()):
            parameters = [p for p in (*function.params.params, *function.params.kwonly_params) if p.annotation]
            alike = _of_one_type((p.name, p.annotation) for p in parameters)
            for target in m.findall(function.body, m.AssignTarget(m.Tuple())):
                bound = [element.value for element in target.target.elements]
                alike.append([name.value for name in bound if isinstance(name, cst.Name) and name.value != "_"])
            others, reads = _next_of_each(alike), Reads()
            function.body.visit(reads)
            self.of_name |= {name: others[name.value] for name in reads.names if name.value in others}
        for each in m.findall(module, m.ClassDef()):
            fields = [
                line.body[0] for line in each.body.body if m.matches(line, m.SimpleStatementLine([m.AnnAssign()]))
            ]
            self.of_field |= _next_of_each(_of_one_type((field.target, field.annotation) for field in fields))
        return ()

    def name(self, node: cst.Name) -> Iterator[cst.Name]:
        if node in self.of_name:
            yield node.with_changes(value=self.of_name[node])

    def field(self, node: cst.Attribute) -> Iterator[cst.Attribute]:
        if node.attr.value in self.of_field:
            yield node.with_changes(attr=cst.Name(self.of_field[node.attr.value]))


def _of_one_type(annotated: Iterable[tuple[cst.Name, cst.Annotation]]) -> list[list[str]]:
    alike: dict[str, list[str]] = {}
    for name, annotation in annotated:
        alike.setdefault(cst.Module([]).code_for_node(annotation.annotation), []).append(name.value)
    return list(alike.values())


def _next_of_each(alike: list[list[str]]) -> dict[str, str]:
    """Of two or more names that are alike, the one after each; the first after the last."""
    return {name: after for names in alike if names[1:] for name, after in zip(names, names[1:] + names[:1])}


class Reads(cst.CSTVisitor):
    """The names whose values are read, in `names`: no attributes, keywords, or names that are being bound."""

    def __init__(self):
        super().__init__()
        self.names: list[cst.Name] = []

    def visit_Name(self, node: cst.Name) -> None:
        self.names.append(node)

    def visit_Attribute(self, node: cst.Attribute) -> bool:
        return self._only(node.value)

    def visit_Arg(self, node: cst.Arg) -> bool:
        return self._only(node.value)

    def visit_AssignTarget(self, node: cst.AssignTarget) -> bool:
        return self._only()

    def visit_Param(self, node: cst.Param) -> bool:
        return self._only()

    def visit_CompFor(self, node: cst.CompFor) -> bool:
        return self._only(node.iter, *node.ifs, *filter(None, [node.inner_for_in]))

    def _only(self, *nodes: cst.CSTNode) -> bool:
        for node in nodes:
            node.visit(self)
        return False


twins = Twins()
OURS = [
    (cst.Call, dropped_call),
    (cst.Expr, dropped_statement),
    (cst.If, turned_condition),
    (cst.While, turned_condition),
    (cst.CompIf, turned_condition),
    (cst.Name, opposite),
    (cst.Integer, one_less),
    (cst.Module, twins.seek),
    (cst.Name, twins.name),
    (cst.Attribute, twins.field),
]
mutation_operators.extend(OURS)


# One module

IMPORTS = Path("imports.txt")


def noting_imports(run: Callable[..., int]) -> Callable[..., int]:
    """Has the run of all tests write down which modules they import."""

    def noting(*arguments: Any, **options: Any) -> int:
        code = run(*arguments, **options)
        IMPORTS.write_text("\n".join(sys.modules))
        return code

    return noting


def repeating_imports(warm_up: Callable[..., None]) -> Callable[..., None]:
    """Has the process from which that of each mutant is forked import them, so that these, one after the other, need
    not: it takes half of a mutant's time. Nor need their collectors of garbage look at what was imported."""

    def repeating(*arguments: Any) -> None:
        warm_up(*arguments)
        for name in IMPORTS.read_text().split():
            with contextlib.suppress(Exception):  # not every name of a module can be imported
                importlib.import_module(name)
        gc.collect()
        gc.freeze()

    return repeating


def mutate(module: str, names: list[str], workers: int) -> None:
    """Lets mutmut try the mutants of a module with these names, or all; for a process of its own to call."""
    import mutmut.__main__ as mutmut  # changes how processes are started

    credit = mutmut.collect_or_load_stats

    def choose_judges(*arguments: Any, **options: Any) -> None:
        """Puts the quickest test first, and credits each with all functions where every one is to judge them."""
        credit(*arguments, **options)
        seconds, judges = state().duration_by_test, state().tests_by_mangled_function_name
        for function in {mangled_name_from_mutant_name(name) for name in names_of(module)}:
            chosen = seconds if LIST[module].get("every_judge") else judges[function]
            judges[function] = sorted(chosen, key=seconds.__getitem__)
        # Only now, since processes that tests start cannot tell mutmut what they call.
        os.environ["PYTHONPATH"] = str(Path("mutants", SOURCE.parts[0]).resolve())

    mutmut.collect_or_load_stats = choose_judges
    PytestRunner.run_stats = noting_imports(PytestRunner.run_stats)
    PytestRunner.warm_up = repeating_imports(PytestRunner.warm_up)

    (WORK / module).mkdir(parents=True, exist_ok=True)
    os.chdir(WORK / module)
    for name in ("src", "tests", "pyproject.toml"):
        Path(name).unlink(missing_ok=True)
        Path(name).symlink_to(ROOT / name)
    configuration._config = dataclasses.replace(
        configuration.config(),
        only_mutate=[str(SOURCE / module)],
        pytest_add_cli_args_test_selection=[f"tests/{judge}" for judge in LIST[module]["judges"]],
    )
    Path("mutants/mutmut-stats.json").unlink(missing_ok=True)  # which test reads what may have changed
    mutmut._run(names, workers)


@dataclass(frozen=True)
class Mutant:
    """One that has been tried: how it fared, what it is, as `mutants.toml` has it, and the lines that differ."""

    name: str
    status: str
    text: str
    diff: str


def tried(module: str) -> list[Mutant]:
    """The mutants of the last run that have been tried."""
    mutants = []
    with contextlib.chdir(WORK / module):
        data = SourceFileMutationData(path=SOURCE / module)
        data.load()
        for name, code in data.exit_code_by_key.items():
            if code is not None:
                diff = get_diff_for_mutant(name, path=SOURCE / module)
                changed = [line for line in diff.splitlines()[3:] if line[0] in "-+"]
                added = " ".join(line[1:].strip() for line in changed if line[0] == "+")
                function = orig_function_and_class_names_from_key(name)[0]
                mutants.append(Mutant(name, status_by_exit_code[code], f"{function}: {added}", "\n".join(changed)))
    return mutants


def names_of(module: str) -> list[str]:
    """The mutants that a module has."""
    path = SOURCE / module
    return [get_mutant_name(path, name) for name in mutate_file_contents(str(path), path.read_text()).mutant_names]


def failures(module: str, mutants: list[Mutant], whole: bool) -> list[str]:
    """What is wrong with a module's mutants; `whole` where all have been tried."""
    accepted = {text for entry in LIST[module].get("equivalent", []) for text in entry["mutants"]}
    survived = [mutant for mutant in mutants if mutant.status not in NOTICED and mutant.text not in accepted]
    stale = accepted - {mutant.text for mutant in mutants if mutant.status not in NOTICED} if whole else ()
    return [f"{each.status}: {each.text}\n{each.diff}" for each in survived] + [
        f"accepted in mutants.toml, but no survivor: {text}" for text in sorted(stale)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("modules", nargs="*", help="parts of their paths; without one, all of mutants.toml")
    parser.add_argument("--sample", type=int, default=0, help="how many mutants to try of each module; 0 is all")
    parser.add_argument("--survivors", action="store_true", help="try again those that survived the last time")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--run", nargs="*", help=argparse.SUPPRESS)  # the process of one module
    options = parser.parse_args()
    if options.run is not None:
        mutate(options.modules[0], options.run, options.workers)
        return
    chosen = [each for each in LIST if not options.modules or any(part in each for part in options.modules)]
    wrong = 0
    for module in chosen:
        started, names = time.monotonic(), []
        if options.survivors:
            names = [mutant.name for mutant in tried(module) if mutant.status not in NOTICED]
            if not names:
                continue
        else:
            shutil.rmtree(WORK / module, ignore_errors=True)
        if options.sample:
            names = names_of(module)
            names = random.Random(0).sample(names, min(options.sample, len(names)))
        command = [sys.executable, __file__, module, f"--workers={options.workers}", "--run", *names]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
        if done.returncode:
            sys.exit(f"{module}: mutmut failed\n{done.stdout[-3000:]}")
        mutants = tried(module)
        complaints = failures(module, mutants, not options.sample)
        survived = sum(mutant.status not in NOTICED for mutant in mutants)
        late = sum(mutant.status == "timeout" for mutant in mutants)
        print(*complaints, sep="\n\n", end="\n\n" if complaints else "")
        print(
            f"{module}: {len(mutants)} mutants, {len(mutants) - survived} noticed ({late} as their tests took too "
            f"long), {survived} survived, {len(complaints)} complaints, {time.monotonic() - started:.0f} s",
            flush=True,
        )
        wrong += len(complaints)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
