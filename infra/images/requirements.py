"""Prints what posgap, with the extras named on the command line, depends on: images install that first."""

import re
import sys
import tomllib

with open("pyproject.toml", "rb") as file:
    project = tomllib.load(file)["project"]


def requirements(extra: str) -> list[str]:
    """Those of one extra; `posgap[a,b]` among them stands for the extras a and b."""
    found = []
    for requirement in project["optional-dependencies"][extra]:
        ours = re.fullmatch(r"posgap\[(.*)\]", requirement)
        found += [each for name in ours[1].split(",") for each in requirements(name.strip())] if ours else [requirement]
    return found


print("\n".join([*project["dependencies"], *(each for extra in sys.argv[1:] for each in requirements(extra))]))
