"""Reports unexpected errors: one line for the user, and the traceback in a file for the report."""

import os
import platform
import shlex
import sys
import tempfile
import time
import traceback
from contextlib import suppress
from pathlib import Path

from posgap import __version__
from posgap.foundation.errors import shorten
from posgap.foundation.locations import cache_folder
from posgap.foundation.redaction import redact


def describe_internal_error(error: BaseException) -> str:
    """Returns the line for an exception: its kind and message, and the file that now has its traceback.

    In a pod, whose files are soon gone, it also prints the traceback.
    """
    lines = str(error).splitlines() or [""]
    text = "".join(traceback.format_exception(error))
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        print(redact(text), file=sys.stderr, flush=True)
    kept = _save_traceback(text)
    where = f"the traceback is in {kept}; please report it with that file" if kept else "no traceback could be kept"
    return f"internal error: {type(error).__name__}: {shorten(lines[0])}; {where}"


def _save_traceback(text: str) -> Path | None:
    """The file of a traceback, without secrets: in the cache, else in a temporary folder; None if neither can be."""
    command = shlex.join(sys.argv)
    versions = f"posgap {__version__}, Python {platform.python_version()}, {platform.platform()}"
    content = redact(f"{command}\n{versions}\n\n{text}")
    for folder in (cache_folder() / "errors", Path(tempfile.gettempdir())):
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            descriptor, name = tempfile.mkstemp(".log", f"posgap-{time.strftime('%Y%m%d-%H%M%S')}-", folder)
            os.close(descriptor)
            Path(name).write_text(content, encoding="utf-8", errors="backslashreplace")
            return Path(name)
    return None
