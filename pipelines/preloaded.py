"""What the server of steps imports before it forks itself for the first of them (`forked_steps`); it imports nothing
else."""

import contextlib
import gc
import importlib
import os

from posgap.pipelines import LIBRARIES

# What libraries print at import is no part of a run's output.
with open(os.devnull, "w") as nowhere:
    for stream in (1, 2):
        os.dup2(nowhere.fileno(), stream)
for name in LIBRARIES:
    with contextlib.suppress(ImportError):  # the step that needs it will say so
        importlib.import_module(name)
# Imported objects never become garbage. If a step's Python looked for garbage among these 800,000 objects, as it does
# now and then, it would copy every page of the server's memory that holds one.
gc.collect()
gc.freeze()
