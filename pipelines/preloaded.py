"""What the server of steps imports before it forks itself for the first of them (`forked_steps`); nothing else may."""

import contextlib
import gc
import importlib
import os

from posgap.pipelines import LIBRARIES

# What libraries say as they are imported is no part of a run's output.
with open(os.devnull, "w") as nowhere:
    for stream in (1, 2):
        os.dup2(nowhere.fileno(), stream)
for name in LIBRARIES:
    with contextlib.suppress(ImportError):  # the step that needs it will say so
        importlib.import_module(name)
# What was imported never becomes garbage. A step that looked for garbage there, as Python does now and then, would copy
# every page of the server's memory on which one of these 800,000 objects lies.
gc.collect()
gc.freeze()
