"""A stage that copies its input."""

from posgap.foundation.errors import Rejection
from posgap.foundation.fields import InputPath
from posgap.options.base import SeededConfig
from posgap.verbs.frame import stage


class CopyConfig(SeededConfig):
    source: InputPath
    shout: bool = False


CALLS = []


@stage
def copy(config, out, run):
    CALLS.append(config)
    text = config.source.read_text()
    (out / "half.txt").write_text("half")
    if text == "stop":
        raise KeyboardInterrupt
    if text == "refuse":
        raise Rejection("refused")
    (out / "copy.txt").write_text(text.upper() if config.shout else text)
    run.metrics({"length": len(text)})
