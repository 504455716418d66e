"""Verbs that write a single file."""

import functools
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from posgap.foundation.locations import Location, is_uri
from posgap.foundation.printing import RESULT, set_result
from posgap.options.base import FileConfig
from posgap.storage.folders import publish_file
from posgap.storage.outputs import File
from posgap.verbs.inputs import on_this_machine, sources

log = logging.getLogger(__name__)

C = TypeVar("C", bound=FileConfig)


def writes_file(work: Callable[[C, Path], str]) -> Callable[[C], Location]:
    """Turns `work(config, file)`, which writes a file and returns its result, into a verb that writes `config.out`.

    Inputs in S3 are fetched, and an output there is uploaded. The file is written atomically, and replaces another one
    only with `config.force`.
    """

    @functools.wraps(work)
    def write_file(config: C) -> Location:
        with File(config, config.force) as output:
            done = work(on_this_machine(config, sources(config)), output.partial)
            if is_uri(config.out):
                publish_file(output.partial, config.out, config.force)
            else:
                output.take_place()
        log.log(RESULT, "%s to %s", done, config.out)
        set_result({"done": done, "out": str(config.out)})
        return config.out

    return write_file
