"""Has a step that was killed go on in the folder where it was, in whichever run it is asked for again.

KFP's local runner gives each run a folder of its own, and takes from its cache what is complete. What a step of a
killed run has kept, as the checkpoints of a training, lies beside its unfinished outputs. So the folder of a step that
is begun is written down under the step's key in KFP's cache: the digest of its component and its arguments. Whoever
runs the same step again before it is complete runs it there. Steps that are never cached get a new folder in each run.
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
    """Within the block KFP's local runner, whose cache is the folder `cache`, runs steps so."""
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
    """Where the steps of each key were begun: a file for each beside KFP's entries, with the path from there."""

    def __init__(self, cache: Path):
        self.cache = cache.absolute()
        self.running: set[str] = set()
        self.turn = threading.Lock()

    @contextlib.contextmanager
    def place(self, key: str, own: Path) -> Iterator[Path]:
        """The folder to run a step in: where it was begun before, else `own`; that too if it is never cached (an empty
        key), or if the same step is running there at this moment, in another turn of a loop."""
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
        with files.atomic(file) as partial:
            partial.write_text(os.path.relpath(own, self.cache), encoding="utf-8")
        return own
