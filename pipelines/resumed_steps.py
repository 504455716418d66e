"""Makes a killed step resume in its old folder, whichever run requests it again.

KFP's local runner gives each run a folder of its own, and takes complete steps from its cache. What a step of a killed
run has kept, such as a training's checkpoints, lies beside its unfinished outputs. So the folder of a started step is
recorded under the step's key in KFP's cache: the digest of its component and its arguments. The same step, run again
before it is complete, runs there. Steps that are never cached get a new folder in each run.
"""

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from posgap.foundation import files


@contextlib.contextmanager
def resumed_steps(cache: Path) -> Iterator[None]:
    """Within the block KFP's local runner, with the cache in the folder `cache`, runs steps this way."""
    from kfp.local import task_dispatcher
    from kfp.local.cache import LocalCache

    places = _Places(cache)
    missed = threading.local()
    look_up = LocalCache.get
    run = task_dispatcher.run_single_task_implementation

    def looked_up(self: LocalCache, key: str) -> dict[str, Any] | None:
        outputs = look_up(self, key)
        missed.key = "" if outputs is not None else key  # the step of this key is what the thread runs next
        return outputs

    def run_step(*, pipeline_root: str, pipeline_resource_name: str, **more: Any) -> Any:
        key = getattr(missed, "key", "")
        missed.key = ""
        with places.place(key, Path(pipeline_root, pipeline_resource_name).absolute()) as folder:
            # KFP joins the two, and an absolute path goes before the root.
            return run(pipeline_root=pipeline_root, pipeline_resource_name=str(folder), **more)

    LocalCache.get = looked_up
    task_dispatcher.run_single_task_implementation = run_step
    try:
        yield
    finally:
        LocalCache.get = look_up
        task_dispatcher.run_single_task_implementation = run


class _Places:
    """The folders in which each key's steps began: a file for each beside KFP's entries, with the path from there."""

    def __init__(self, cache: Path):
        self.cache = cache.absolute()
        self.running: set[str] = set()
        self.turn = threading.Lock()

    @contextlib.contextmanager
    def place(self, key: str, own: Path) -> Iterator[Path]:
        """Returns the folder to run a step in: the one in which it began before, else `own`. It is also `own` if the
        step is never cached (an empty key), or is running there now, in another turn of a loop."""
        with self.turn:
            alone = bool(key) and key not in self.running
            self.running |= {key} if alone else set()
        try:
            yield self._folder_to_resume(key, own) if alone else own
        finally:
            if alone:
                self.running.discard(key)

    def _folder_to_resume(self, key: str, own: Path) -> Path:
        file = self.cache / f"{key}.place"
        if file.is_file():
            return Path(os.path.normpath(self.cache / file.read_text(encoding="utf-8")))
        files.write_text(file, os.path.relpath(own, self.cache))
        return own
