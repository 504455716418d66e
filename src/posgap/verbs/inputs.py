"""Finds the inputs that options name: their places, and their local copies."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from posgap.foundation.errors import PosgapError
from posgap.foundation.fields import Role, role
from posgap.foundation.locations import as_location, is_address, is_uri
from posgap.options.base import Config
from posgap.storage.cache import Source
from posgap.storage.folders import local_copy
from posgap.storage.inputs import ByName, OnDisk, source

C = TypeVar("C", bound=Config)


R = TypeVar("R")


def sources(config: Config) -> dict[str, Source]:
    """The sources of the config's inputs by field; `field.1`, `field.2` if a field has several. `PosgapError` names all
    that are missing, and is of the first one's kind."""
    by_field: dict[str, Source] = {}
    missing: dict[str, PosgapError] = {}
    out = getattr(config, "out", None)
    for name, field in type(config).model_fields.items():
        value = getattr(config, name)
        if role(field) is Role.PLACE:
            by_field[name] = ByName(value)
        if role(field) is not Role.INPUT or value is None:
            continue
        several = {f"{name}.{i}": each for i, each in enumerate(value, start=1)} if isinstance(value, list) else None
        for key, location in ({name: value} if several is None else several).items():
            is_served = config.is_served(name)
            if is_served and out and Path(location).absolute() == Path(out).absolute():
                by_field[key] = ByName(location)  # the content is the output, not the served model
                continue
            try:
                by_field[key] = source(location, is_served)
            except PosgapError as error:
                missing[key] = error
                if is_uri(location) or is_address(location):  # a server that does not answer is waited for once
                    raise _joined(missing) from None
    for key, place in config.further_inputs().items():
        try:
            by_field[key] = source(as_location(place))
        except PosgapError as error:
            missing[key] = error
    if missing:
        raise _joined(missing)
    return by_field


def _joined(missing: dict[str, PosgapError]) -> PosgapError:
    return type(next(iter(missing.values())))("; ".join(f"{key}: {error}" for key, error in missing.items()))


def on_this_machine(config: C, input_sources: dict[str, Source]) -> C:
    """Returns the config with local paths instead of URIs: inputs are fetched, outputs get their local copies.

    Work folders stay unchanged; `posgap.storage.folders.ResumableFolder` handles them.
    """
    changed: dict[str, Any] = {}
    for name, field in type(config).model_fields.items():
        value = getattr(config, name)
        if role(field) is Role.OUTPUT and is_uri(value):
            changed[name] = local_copy(value)
        elif role(field) is Role.INPUT and isinstance(value, list):
            changed[name] = [input_sources[f"{name}.{i}"].fetch() for i, _ in enumerate(value, start=1)]
        elif role(field) is Role.INPUT and value is not None and not isinstance(input_sources[name], OnDisk | ByName):
            changed[name] = (str if field.annotation in (str, str | None) else Path)(input_sources[name].fetch())
    return config.model_copy(update=changed)


def with_local_paths(work: Callable[[C], R]) -> Callable[[C], R]:
    """Lets a function that is no stage read the inputs of its config from S3."""

    @functools.wraps(work)
    def work_on_local_paths(config: C) -> R:
        return work(on_this_machine(config, sources(config)))

    return work_on_local_paths
