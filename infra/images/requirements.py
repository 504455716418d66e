"""What images install:

requirements.py EXTRA...         what posgap with these extras depends on
requirements.py --locked REPORT  what pip chose, as `pip install --dry-run --report` says, with the sha256s of the lists

With `--without bm25s,kubeflow` in front of extras, these and nothing else are left out.
"""

import json
import re
import sys
import tomllib
from pathlib import Path

# In this order: gpu-serve.txt also has CUDA's libraries, which torch names by their versions.
LISTS = "hashes.txt", "flash-attn.txt", "gpu-serve.txt"


def requirements(extra: str) -> list[str]:
    """Those of one extra; `posgap[a,b]` among them stands for the extras a and b."""
    found = []
    for requirement in project()["optional-dependencies"][extra]:
        ours = re.fullmatch(r"posgap\[(.*)\]", requirement)
        found += [each for name in ours[1].split(",") for each in requirements(name.strip())] if ours else [requirement]
    return found


def project() -> dict:
    """The table of that name in pyproject.toml."""
    return tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]


def normal(name: str) -> str:
    """A package's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def locked(report: dict) -> list[str]:
    """The entry of each package that the report installs; one line says which has none in that version."""
    entries = {}
    for name in reversed(LISTS):
        text = Path(name).read_text(encoding="utf-8")
        for entry in re.findall(r"^\S+==.*?(?=^\S|\Z)", text, re.MULTILINE | re.DOTALL):
            package, version = re.match(r"([\w.-]+)==([\w.+!-]+)", entry).groups()
            entries[normal(package), version] = entry.strip()
    chosen = [(normal(each["metadata"]["name"]), each["metadata"]["version"]) for each in report["install"]]
    if missing := [f"{name} {version}" for name, version in chosen if (name, version) not in entries]:
        sys.exit(f"requirements.py: no sha256s of {', '.join(missing)} in {', '.join(LISTS)}: make hashes")
    return [entries[each] for each in chosen]


if __name__ == "__main__":
    words = sys.argv[1:]
    if words[0] == "--locked":
        print("\n".join(locked(json.loads(Path(words[1]).read_text(encoding="utf-8")))))
    else:
        left_out = words[1].split(",") if words[0] == "--without" else []
        extras = words[2:] if left_out else words
        wanted = [*project()["dependencies"], *(each for extra in extras for each in requirements(extra))]
        print("\n".join(each for each in wanted if re.match(r"[\w.-]+", each)[0] not in left_out))
