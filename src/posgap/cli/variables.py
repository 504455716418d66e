"""The variables of the environment that posgap reads: a name that is nearly one of them is pointed out."""

from collections.abc import Iterator, Mapping

import click

from posgap.cli.config_file import PREFIX, VARIABLE
from posgap.foundation.errors import suggestion

# Beside POSGAP_VERB_OPTION, which stand for options. Some are of posgap's images, its tests or its benchmarks.
KNOWN = {
    VARIABLE,
    *("POSGAP_CACHE", "POSGAP_CLUSTER", "POSGAP_KFP_UI"),
    *("POSGAP_LEASE_SECONDS", "POSGAP_PARENT_RUN_ID", "POSGAP_PIPELINE_RUN", "POSGAP_PROCESSES", "POSGAP_RETRIES"),
    *("POSGAP_SIGNING_KEY", "POSGAP_TRAIN_POOL", "POSGAP_WEBHOOK_URL"),
}
_NEAR = 0.85  # a share of letters in common: Kubernetes has variables of a service posgap-NAME, too


def complaints(root: click.Group, environment: Mapping[str, str]) -> list[str]:
    """A line for each variable that is not known, and whose name is nearly that of one that is."""
    unknown = [name for name in environment if name.startswith(f"{PREFIX}_") and name not in KNOWN]
    if not unknown:
        return []
    known = KNOWN | set(_of_options(root, PREFIX))
    near = {name: suggestion(name, known, "", at_most=1, cutoff=_NEAR) for name in unknown if name not in known}
    return [f"{name}: no variable of posgap is called so; {meant}" for name, meant in near.items() if meant]


def _of_options(command: click.Command, above: str) -> Iterator[str]:
    """The names by which click looks for a value of each option of a command, and of those below it."""
    for option in command.params:
        yield f"{above}_{option.name}".upper()
    if isinstance(command, click.Group):
        for name, each in command.commands.items():
            yield from _of_options(each, f"{above}_{name.replace('-', '_')}")
