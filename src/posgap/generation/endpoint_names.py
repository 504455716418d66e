"""Parses an endpoint's name: its address and its model's name, or one text with both."""

import json
import re
from collections.abc import Mapping
from typing import Any

from posgap.foundation.errors import BadOption, PosgapError, shorten
from posgap.foundation.fields import is_endpoint, pairs
from posgap.foundation.redaction import redact
from posgap.generation.endpoint_address import about_key, endpoint_url, headers_of, tls

_TIMEOUT = 10.0  # seconds to wait for the list of models
_MAX_SHOWN = 5  # names in a message
_MAX_BYTES = 2**22  # of the list of models
_WITHOUT_SCHEME = re.compile(r"(?!\d+:)[\w.-]+:\d{2,5}(?:[/#].*)?")


def with_endpoint(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a config's values with the endpoint's address in `base_url` and its model's name in `model`.

    Both may stand in `model`: `http://host/v1#name`. Without a name the endpoint is asked which model it serves. Raises
    `PosgapError` if it serves several, or does not say.
    """
    named = values.get("model")
    if not is_endpoint(named):
        if isinstance(named, str) and not values.get("base_url") and _WITHOUT_SCHEME.fullmatch(named):
            raise BadOption(f"--model: {shorten(named)}: write http:// in front of an endpoint's address")
        return dict(values)
    address, _, name = values["model"].partition("#")
    if values.get("base_url"):
        raise BadOption("--model and --base-url are both addresses; give the model's name as --model")
    name = name or only_model(address, pairs(values.get("header") or {}))
    return {**values, "model": name, "base_url": address}


def only_model(address: str, header: Mapping[str, str]) -> str:
    """The name of the model that an endpoint serves, by its list of models.

    Raises `PosgapError` if it serves several or none, and if it cannot be asked.
    """
    names = _fetch_names(address, header)
    if len(names) == 1:
        return names[0]
    shown = ", ".join(map(shorten, names[:_MAX_SHOWN])) + ", ..." * (len(names) > _MAX_SHOWN)
    serves = f"serves {len(names)} models ({shown})" if names else "does not say which model it serves"
    raise BadOption(f"--model: {redact(address)} {serves}; name one: {redact(address)}#NAME")


def _fetch_names(address: str, header: Mapping[str, str]) -> list[str]:
    import httpx2

    url = endpoint_url(address, "models")
    shown = redact(address)
    headers = headers_of(header)
    try:
        answer = httpx2.get(url, headers=headers, timeout=_TIMEOUT, verify=tls())
    except (httpx2.HTTPError, httpx2.InvalidURL, ImportError, ValueError) as fault:
        reason = redact(str(fault)) or type(fault).__name__
        raise PosgapError(f"{shown}: does not say which model it serves: {reason}; start it, or correct it") from None
    if answer.status_code in (401, 403):
        raise PosgapError(f"{shown}: {answer.status_code}, the key is wrong or missing; {about_key(headers)}")
    return _parse_names(answer.content) if answer.is_success else []


def _parse_names(body: bytes) -> list[str]:
    """The names in a list of models; none if the body is no such list."""
    try:
        listed = json.loads(body[:_MAX_BYTES])["data"]
        names = [each["id"] for each in listed]
    except (ValueError, LookupError, TypeError, RecursionError):
        return []
    return [name for name in names if isinstance(name, str) and name]
