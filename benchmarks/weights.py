"""What an installation weighs: packages and megabytes of posgap alone, and of each of its extras beside that.

    python benchmarks/weights.py [--write]

It reads the metadata of what is installed here, where all extras but a few must be (`make test`): the files of every
package that a requirement brings, and of what those require in turn. Nothing is downloaded.
"""

import argparse
import re
import tomllib
from importlib.metadata import Distribution, distributions

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from report import ROOT, conclude

from posgap.foundation.tables import markdown

TOGETHER = "mlflow,kfp,s3,tables,validate"  # what every installation brought before there were extras
TEXT = """## What an installation weighs

Written by `benchmarks/weights.py --write` on {date}. The table counts packages, and megabytes (2^20 bytes) of their
files, less what Python compiles, by the metadata of what is installed. The CPU build of torch takes {torch} MB of it.
An extra is what comes beside the core; several share packages. *Before* is what a plain installation brought when there
were no extras: the core and the first five. On the same day an environment with the core alone, of 55 packages, ran
`posgap init`, `data make kv`, `data import` and `sweep` on a tiny model.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="put the figures into build/results/")
    arguments = parser.parse_args()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    core, extras = project["dependencies"], project["optional-dependencies"]
    here = {canonicalize_name(each.metadata["Name"]): each for each in distributions()}
    brought = closure(core, here)
    first_five = [each for name in TOGETHER.split(",") for each in extras[name]]
    weights = {"posgap": weight(brought, here), "before": weight(closure([*core, *first_five], here), here)}
    for name in extras["all"][0].removeprefix("posgap[").removesuffix("]").split(","):
        weights[f"[{name}]"] = weight(closure(extras[name], here) - brought, here)
    rows = [[name, str(packages), f"{megabytes:,}"] for name, (packages, megabytes) in weights.items()]
    torch = weight({"torch"}, here)[1]
    table = markdown(["installed", "packages", "MB"], rows)
    conclude("weights", TEXT.replace("{torch}", str(torch)), [table], weights, arguments.write)


def closure(requirements: list[str], here: dict[str, Distribution]) -> set[str]:
    """The names of all packages that requirements bring on this machine. `KeyError` where one is not installed."""
    found: set[tuple[str, str]] = set()
    asked = [Requirement(each) for each in requirements]
    while asked:
        requirement = asked.pop()
        name = canonicalize_name(requirement.name)
        for extra in {"", *requirement.extras} - {extra for known, extra in found if known == name}:
            found.add((name, extra))
            inner = map(Requirement, here[name].requires or [])
            asked += [each for each in inner if each.marker is None or each.marker.evaluate({"extra": extra})]
    return {name for name, _ in found}


def weight(names: set[str], here: dict[str, Distribution]) -> tuple[int, int]:
    """How many packages, and the megabytes of their files."""
    paths = [file.locate() for name in names for file in here[name].files or [] if not re.search(r"\.pyc$", str(file))]
    return len(names), round(sum(path.stat().st_size for path in paths if path.exists()) / 2**20)


if __name__ == "__main__":
    main()
