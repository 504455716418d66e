"""What an error says whatever its wording: its kind, its place, and the names and figures in its line."""

from contextlib import contextmanager

import pytest

from posgap.foundation.errors import PosgapError


@contextmanager
def refuses(kind=PosgapError, *named, at=""):
    """Expects an error of exactly this kind, at a place that ends in `at`, which names each of `named`."""
    with pytest.raises(PosgapError) as refused:
        yield refused
    error = refused.value
    assert error.code == kind.code, repr(error)
    assert error.at.endswith(str(at)), error.at
    said = str(error).removeprefix(error.at if at else "")  # which may hold the name too
    for name in map(str, named):
        assert name in said, f"{name!r} is not in: {error}"
