"""The places that an output may take. A place where it would harm files that posgap did not make is refused before any
work."""

import os
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from posgap.foundation.errors import BadOutput
from posgap.foundation.fields import Role, role
from posgap.foundation.files import HOME_PREFIX, workspace
from posgap.foundation.locations import Location, at_home, is_uri

_UNPRINTABLE = ("Cc", "Cs")  # control characters, and halves of characters


class Writing(Protocol):
    """A verb's config with a place to write to."""

    @property
    def out(self) -> Any:
        """The file or folder to write."""


def require_place(config: Writing) -> None:
    """Raises `PosgapError` if `config.out` can be no output, whoever made its present content.

    It must not be, contain or lie in an input. It must not be or contain the current folder, the home folder or a work
    folder, so it is neither `/` nor `..`. It must be no link. Its name must be printable, and valid on every disk.
    """
    out = config.out
    if any(unicodedata.category(character) in _UNPRINTABLE for character in str(out)):
        raise BadOutput(f"{str(out)!a}: cannot be the output: its name has characters that cannot be printed")
    reason = _in_s3(out, config) if is_uri(out) else _bad_name(out) or _on_this_disk(out, config)
    if reason:
        raise BadOutput(f"{out}: cannot be the output: {reason}")


def resolve_place(out: Path) -> Path:
    """The absolute path of a place, with all links on the way to it resolved."""
    return out.parent.resolve() / out.name if out.name else out.resolve()


def _bad_name(out: Path) -> str:
    if any(part.startswith(HOME_PREFIX) for part in out.parts):
        return f"names that begin with {HOME_PREFIX} are reserved for unfinished outputs"
    if not out.name:  # `.` and `/`
        return ""
    if out.name == "..":
        return "`..` is not a name"
    if ".." in out.parts:
        back = Path(*out.parts[: len(out.parts) - out.parts[::-1].index("..")])
        if not back.is_dir():
            return f"{back} is not a folder"
    if out.name != out.name.rstrip(". "):
        return "its name ends in a dot or a space, which other systems drop"
    try:
        if out.is_symlink():
            return f"it is a symbolic link; name the place itself, {os.readlink(out)}"
        workspace(out).is_symlink()  # raises if the workspace's name, which is longer, is too long
        resolve_place(out)
    except (OSError, RuntimeError) as error:  # names too long, links in a circle
        return (isinstance(error, OSError) and error.strerror) or str(error)
    return ""


def _on_this_disk(out: Path, config: Writing) -> str:
    at = resolve_place(out)
    for what, place in (("the current folder", Path.cwd()), ("the home folder", at_home(Path("~")))):
        if _within(place, at):
            return f"it {'is' if _same(place, at) else 'contains'} {what}"
    for field, kind, given in _given_locations(config):
        if str(given) == str(out) or _same(Path(given), at):
            return f"it is `{field}`"
        if _within(Path(given), at):
            return f"it contains `{field}` ({given})"
        if kind is Role.INPUT and _within(at, Path(given)):
            return f"it lies in `{field}` ({given}), and would change its content"
    return ""


def _in_s3(out: str, config: Writing) -> str:
    for field, kind, given in _given_locations(config):
        place = str(given).rstrip("/")
        if place == out:
            return f"it is `{field}`"
        if place.startswith(f"{out}/"):
            return f"it contains `{field}` ({given})"
        if kind is Role.INPUT and out.startswith(f"{place}/"):
            return f"it lies in `{field}` ({given}), and would change its content"
    return ""


def _given_locations(config: Any) -> Iterator[tuple[str, Role, Location]]:
    """The inputs, places and work folders of a config: field, role and location. A server's name for its model is no
    location."""
    for name, field in type(config).model_fields.items():
        kind = role(field)
        value = getattr(config, name)
        if kind in (Role.INPUT, Role.PLACE, Role.WORK) and value and not config.is_served(name):
            for location in value if isinstance(value, list) else [value]:
                yield name, kind, location


def _same(place: Path, other: Path) -> bool:
    try:
        return os.path.samefile(place, other)
    except (OSError, ValueError):
        return False


def _within(inner: Path, outer: Path) -> bool:
    """Whether a place is another one or lies below it, also through links."""
    try:
        inner = inner.resolve()
    except (OSError, RuntimeError, ValueError):
        return False
    return any(_same(place, outer) for place in (inner, *inner.parents))
