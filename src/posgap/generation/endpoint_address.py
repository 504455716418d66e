"""Reads an endpoint's address, headers and certificates, which may name environment variables."""

import os
import re
import ssl
import string
from collections.abc import Mapping
from functools import cache
from typing import Any

from posgap.foundation.errors import BadOption, shorten

KEY_VARIABLE = "OPENAI_API_KEY"


def endpoint_url(address: str, path: str) -> str:
    """Returns the URL of a path below an endpoint's address; `$VARIABLE` in it stands for an environment variable."""
    address, mark, query = _fill_variables(address, "--base-url").strip().partition("?")  # Azure's has a query
    return f"{address.rstrip('/')}/{path}{mark}{query}"


def headers_of(header: Mapping[str, str]) -> dict[str, str]:
    """Returns the headers of every request: the key from the environment, and the given ones; `$VARIABLE` in them
    stands for an environment variable. Raises `PosgapError`, which shows no value, if a variable is unset or cannot be
    sent.
    """
    key = os.environ.get(KEY_VARIABLE, "").strip()
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    for name, text in header.items():
        value = _fill_variables(text, f"--header {name}").strip()
        headers = {own: each for own, each in headers.items() if own.lower() != name.lower()} | {name: value}
    for name, value in headers.items():
        if not re.fullmatch(r"[\w!#$%&'*+.^`|~-]+", name, re.ASCII) or not re.fullmatch(r"[ -~]*", value):
            where = KEY_VARIABLE if name == "Authorization" and name not in header else f"--header {shorten(name)}"
            raise BadOption(f"{where}: has characters that a header cannot hold; give printable ASCII")
    return headers


def about_key(headers: Mapping[str, str]) -> str:
    """Says what to do if an endpoint refuses the key in these headers, or if they have none."""
    key = os.environ.get(KEY_VARIABLE, "").strip()
    was_sent = bool(key) and headers.get("Authorization") == f"Bearer {key}"
    return f"the key in {KEY_VARIABLE} was refused: set another one" if was_sent else f"set {KEY_VARIABLE}"


def _fill_variables(text: str, option: str) -> str:
    """A text of an option, with the environment's variables in place of `$VARIABLE`."""
    try:
        return string.Template(text).substitute(os.environ)
    except KeyError as unset:
        raise BadOption(f"{option}: the variable {unset.args[0]} is not set") from None
    except ValueError:
        raise BadOption(f"{option}: write $VARIABLE for a variable, and $$ for a dollar sign") from None


def with_variables(value: Any) -> Any:
    """Returns a JSON value of `--body`; a text that is just `$VARIABLE` stands for an environment variable."""
    if isinstance(value, dict):
        return {name: with_variables(each) for name, each in value.items()}
    if isinstance(value, list):
        return [with_variables(each) for each in value]
    is_variable = isinstance(value, str) and re.fullmatch(r"\$[A-Za-z_]\w*", value)
    return _fill_variables(value, "--body") if is_variable else value


@cache
def tls() -> ssl.SSLContext:
    """The certificates that servers are known by, which take a tenth of a second to read."""
    import httpx2

    return httpx2.create_ssl_context()
