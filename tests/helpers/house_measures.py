"""Measures of the size and the language of the house. `python tests/helpers/house_measures.py` prints them.

The limits that tests hold are in test_house.py.
"""

import ast
import functools
import os
import re
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
CODE = ("src/posgap", "components", "pipelines")
WRITTEN_TABLE = re.compile(r"<!-- table: .*?<!-- /table -->", re.DOTALL)
# Past participles that do not end in "ed", and words in "ed" that are none.
IRREGULAR = frozenset(
    [
        "said",
        "told",
        "found",
        "made",
        "given",
        "kept",
        "drawn",
        "shown",
        "known",
        "taken",
        "held",
        "sent",
        "met",
        "lost",
        "laid",
        "written",
        "swept",
        "begun",
        "worded",
        "led",
        "bound",
        "won",
        "built",
        "spent",
        "thought",
    ]
)
NO_PARTICIPLES = frozenset(["seed", "need", "speed", "embed", "feed", "indeed", "exceed"])
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def python_files(*folders: str) -> list[Path]:
    """The Python files below folders of the checkout, in order."""
    return sorted(file for folder in folders for file in (ROOT / folder).rglob("*.py"))


def parse(file: Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(file.read_text(encoding="utf-8"))


def definitions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
    """All functions and classes of a tree, methods and inner ones too."""
    for node in ast.walk(tree):
        if isinstance(node, DEFINITIONS):
            yield node


def is_participle(name: str) -> bool:
    """Whether a name is a past participle and nothing else, like `swept` or `_asked`."""
    word = name.strip("_").lower()
    if "_" in word or word in NO_PARTICIPLES:
        return False
    return word in IRREGULAR or (word.endswith("ed") and len(word) > 4)


def participles() -> Counter[str]:
    """How many functions and classes are named by each bare participle."""
    names = (node.name for file in python_files(*CODE) for node in definitions(parse(file)))
    return Counter(name.strip("_").lower() for name in names if is_participle(name))


def common_names(files: int = 5) -> dict[str, int]:
    """The names of functions and classes that are defined in so many files or more, with how many."""
    places = defaultdict(set)
    for file in python_files(*CODE):
        for node in definitions(parse(file)):
            if not node.name.startswith("__"):
                places[node.name.strip("_").lower()].add(file)
    return {name: len(found) for name, found in sorted(places.items()) if len(found) >= files}


def docstrings_that_refer() -> list[str]:
    """The definitions whose docstring begins with "The same" or "Of", which nobody understands alone."""
    found = []
    for file in python_files(*CODE):
        for node in definitions(parse(file)):
            if re.match(r"(The same|Of)\b", ast.get_docstring(node) or ""):
                found.append(f"{file.relative_to(ROOT)}:{node.lineno} {node.name}")
    return found


def lines_of_code() -> int:
    """Lines of the code that are not blank."""
    return sum(bool(line.strip()) for file in python_files(*CODE) for line in file.read_text("utf-8").splitlines())


def is_nested(node: ast.AST) -> bool:
    """Whether a comprehension holds another, or has two loops."""
    inner = (each for child in ast.iter_child_nodes(node) for each in ast.walk(child))
    return len(node.generators) > 1 or any(isinstance(each, COMPREHENSIONS) for each in inner)


def syntax_counts() -> dict[str, int]:
    """How many comprehensions there are, how many that hold another or loop twice, and how many walruses."""
    counts = Counter()
    for file in python_files(*CODE):
        for node in ast.walk(parse(file)):
            counts["walruses"] += isinstance(node, ast.NamedExpr)
            if isinstance(node, COMPREHENSIONS):
                counts["comprehensions"] += 1
                counts["nested"] += is_nested(node)
    return dict(counts)


def lines(*folders: str) -> int:
    """All lines of the Python files below folders."""
    return sum(len(file.read_text(encoding="utf-8").splitlines()) for file in python_files(*folders))


def rooms() -> dict[str, int]:
    """Lines of each room of src/posgap."""
    folders = sorted(folder for folder in (ROOT / "src/posgap").iterdir() if folder.is_dir())
    return {folder.name: lines(str(folder.relative_to(ROOT))) for folder in folders if folder.name != "__pycache__"}


def words() -> int:
    """Words of README and of the pages in docs, without the tables that `docs/tables.py` writes."""
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    return sum(len(WRITTEN_TABLE.sub("", page.read_text(encoding="utf-8")).split()) for page in pages)


def test_functions() -> list[str]:
    """The names of all test functions."""
    found = (node.name for file in python_files("tests") for node in definitions(parse(file)))
    return [name for name in found if name.startswith("test_")]


def functions_run_by(work: Callable[[], object]) -> list[str]:
    """The functions of posgap that `work` runs, `file:line name`, in order of their first calls; no comprehensions.

    `work` ends the record where it calls `sys.setprofile(None)`.
    """
    codes = dict[Any, None]()

    def record(frame: Any, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and "/posgap/" in code.co_filename and not re.match("<(?!lambda)", code.co_name):
            codes.setdefault(code)

    sys.setprofile(record)
    try:
        work()
    finally:
        sys.setprofile(None)
    return [f"{code.co_filename.rpartition('/posgap/')[2]}:{code.co_firstlineno} {code.co_qualname}" for code in codes]


def way_of_r1_step() -> list[str]:
    """The functions that a step of R1 runs on the tiny model, from `TrainStep` to `optimizer.step`."""
    import torch
    from accelerate import Accelerator

    from posgap.demo import tiny_model
    from posgap.distillation.batches import Collator, TrainingPrompt
    from posgap.distillation.branches import attention_over_branches
    from posgap.distillation.engine import TrainStep
    from posgap.distillation.gradients import Gradient
    from posgap.distillation.objectives import R1
    from posgap.distillation.student import Student
    from posgap.distillation.teacher_states import Teacher, TeacherStates, frozen_head
    from posgap.tasks.prompts import PromptBuilder
    from posgap.tasks.registry import TASKS

    sys.path.append(str(ROOT / "tests"))
    from conftest import answered

    model, accelerator, cpu = tiny_model.untrained(0), Accelerator(cpu=True), torch.device("cpu")
    pairs = answered()
    collate = Collator(pairs, PromptBuilder(TASKS["kv"], tiny_model.tokenizer(), 512, 4))
    objective = R1([(1,)] * len(pairs), "paper", 1.0)
    with tempfile.TemporaryDirectory() as folder, attention_over_branches(model) as shares_prefixes:
        teacher = Teacher(TeacherStates(Path(folder), {}), frozen_head(model, False), collate)
        student = Student(model, objective, teacher)
        teacher.read_missing(student, cpu, 1000)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        optimizer.register_step_pre_hook(lambda *_: sys.setprofile(None))
        gradient = Gradient(accelerator, student, accelerator.prepare(optimizer), max_norm=1.0)
        train_step = TrainStep(student, gradient, objective, collate, cpu, 150, shares_prefixes)
        rows = [TrainingPrompt(pair, (position,)) for pair in range(len(pairs)) for position in (1, 2, 3)]
        collate.build_prompts(rows)
        return functions_run_by(lambda: train_step.run(1, rows))


def way_of_sweep() -> list[str]:
    """The functions on the stack from `posgap sweep` on the command line to the model's first forward pass."""
    from transformers import LlamaForCausalLM

    from posgap.cli.main import main as posgap
    from posgap.data.reading import write_examples
    from posgap.demo import tiny_model
    from posgap.models.loading import save_model

    sys.path.append(str(ROOT / "tests/helpers"))
    from examples import kv_example

    stack: list[str] = []

    def forward(*_: object, **__: object) -> None:
        frame = sys._getframe()
        while frame := frame.f_back:
            code = frame.f_code
            if "/posgap/" in code.co_filename:
                place = code.co_filename.rpartition("/posgap/")[2]
                stack.insert(0, f"{place}:{code.co_firstlineno} {code.co_qualname}")
        raise KeyboardInterrupt

    forward_of_model = LlamaForCausalLM.forward
    with tempfile.TemporaryDirectory() as folder, suppress(SystemExit):
        save_model(tiny_model.untrained(0), tiny_model.tokenizer(), Path(folder, "model"))
        write_examples(Path(folder, "examples.jsonl"), [kv_example(0), kv_example(1)])
        LlamaForCausalLM.forward = functools.wraps(forward_of_model)(forward)
        try:
            words = f"--examples {folder}/examples.jsonl --n-docs 6 --out {folder}/sweep".split()
            posgap(["sweep", f"{folder}/model", *words])
        finally:
            LlamaForCausalLM.forward = forward_of_model
    return stack


def way_of_gate() -> list[str]:
    """The functions on the stack of `posgap gate` at the first test of a rule, from the command on."""
    import numpy as np

    from posgap.cli.main import main as command

    sys.path.append(str(ROOT / "tests/helpers"))
    from written_sweeps import write_sweep

    way = []

    def look(frame: Any, event: str, _: object) -> None:
        if way or event != "call" or frame.f_code.co_name != "tango_refutes":
            return
        while frame:
            code = frame.f_code
            if "/posgap/" in code.co_filename and "<" not in code.co_name:
                way.insert(0, f"{code.co_filename.rpartition('/posgap/')[2]}:{code.co_firstlineno} {code.co_qualname}")
            frame = frame.f_back
        if not any(each.startswith("gating/rules.py") for each in way):
            way.clear()  # the figures of a sweep are computed again first

    with tempfile.TemporaryDirectory() as folder, suppress(SystemExit):
        base, candidate = (write_sweep(Path(folder) / name, np.full(5, 0.9), seed=at) for at, name in enumerate("ab"))
        os.environ |= {"POSGAP_CACHE": f"{folder}/cache", "MLFLOW_TRACKING_URI": ""}
        sys.setprofile(look)
        command(["gate", "--candidate", str(candidate), "--base", str(base), "--out", f"{folder}/gate"])
    sys.setprofile(None)
    return way


# The ways that `--ways` prints: what each is, and what tells its functions.
WAYS = {
    "from `posgap sweep` to the forward pass": way_of_sweep,
    "from R1's step to the optimizer's": way_of_r1_step,
    "from `posgap gate` to the first test of a rule": way_of_gate,
}


def tell_ways() -> None:
    """Prints the functions of each way, and in how many files and lines they stand."""
    for title, way in WAYS.items():
        functions = way()
        print(f"{title}: {len(functions)} functions in {len({each.partition(':')[0] for each in functions})} files")
        print("".join(f"  {each}\n" for each in functions))


def tell_room(room: str) -> None:
    """Prints what one room of src/posgap, or a folder of the checkout, has of what the rules of names count."""
    common = common_names()
    files = python_files(f"src/posgap/{room}") or python_files(room)
    text = [line for file in files for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    counts = Counter[str]()
    for file in files:
        place = file.relative_to(ROOT)
        tree = parse(file)
        for node in definitions(tree):
            name = node.name.strip("_").lower()
            if is_participle(node.name):
                print(f"{place}:{node.lineno} participle {node.name}")
            if name in common and not node.name.startswith("__"):
                print(f"{place}:{node.lineno} in {common[name]} files {node.name}")
            if re.match(r"(The same|Of)\b", ast.get_docstring(node) or ""):
                print(f"{place}:{node.lineno} docstring of {node.name} begins with The same or Of")
        for node in ast.walk(tree):
            counts["walruses"] += isinstance(node, ast.NamedExpr)
            if isinstance(node, COMPREHENSIONS):
                counts["comprehensions"] += 1
                if is_nested(node):
                    print(f"{place}:{node.lineno} nested comprehension")
    rates = ", ".join(f"{count / len(text) * 1000:.1f} {what}" for what, count in counts.items())
    print(f"{room}: {len(text)} lines that are not blank; {rates} per 1,000")


def main() -> None:
    from posgap.options.table import VERBS

    if sys.argv[1:2] == ["--room"]:
        tell_room(sys.argv[2])
        return
    if sys.argv[1:2] == ["--ways"]:
        tell_ways()
        return

    thousand = lines_of_code() / 1000
    syntax = syntax_counts()
    measures: dict[str, object] = {
        **{f"lines of {room}": count for room, count in rooms().items()},
        "lines of src": lines("src"),
        "lines of pipelines and components": lines("pipelines", "components"),
        "lines of tests": lines("tests"),
        "lines of benchmarks": lines("benchmarks"),
        "test functions": len(test_functions()),
        "commands": len(VERBS),
        "options": sum(len(verb.config.options()) for verb in VERBS.values()),
        "words of docs and README": words(),
        "bare participles": sum(participles().values()),
        "names in five files or more": len(common_names()),
        "docstrings that begin with The same or Of": len(docstrings_that_refer()),
        "comprehensions per 1,000 lines": round(syntax["comprehensions"] / thousand, 1),
        "nested ones per 1,000 lines": round(syntax["nested"] / thousand, 1),
        "walruses per 1,000 lines": round(syntax["walruses"] / thousand, 1),
        "test names over 80 letters": sum(len(name) > 80 for name in test_functions()),
    }
    width = max(map(len, measures))
    for name, value in measures.items():
        print(f"{name:{width}} {value}")


if __name__ == "__main__":
    main()
