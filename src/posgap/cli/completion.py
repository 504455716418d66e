"""`posgap completion`: the script by which a shell asks posgap's parser what can come next."""

import click
from click.shell_completion import get_completion_class

from posgap.cli.config import CompletionConfig
from posgap.foundation.printing import show


def completion(config: CompletionConfig) -> None:
    """Prints the script, which calls posgap with the variable that `click` answers to."""
    shell = get_completion_class(config.shell)
    assert shell
    script = shell(click.Command("posgap"), {}, "posgap", "_POSGAP_COMPLETE").source()
    show(script.strip(), {"shell": config.shell, "script": script})
