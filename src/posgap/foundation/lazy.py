"""Modules that are loaded at their first use: those that need numpy, in files that the command line reads."""

import importlib
from typing import Any


class LazyModule:
    """Stands for the module of this name; any of its attributes loads it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(importlib.import_module(self._name), attribute)
