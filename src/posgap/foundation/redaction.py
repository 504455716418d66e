"""Secrets, kept out of all that is printed, logged, written down or sent to MLflow.

A secret is known by its place (the user's part of an address; what follows `Bearer`, `password=` and their kind), by
its form (keys of AWS, tokens of Hugging Face and others), or because an environment variable of such a name holds it.
"""

import os
import re
from typing import Any

HIDDEN = "***"
MIN_CHARACTERS = 8  # characters of a variable's value that is looked for everywhere: "test" stands in too many texts
_KEY = r"(?:api[_-]?key|access[_-]?key(?:[_-]?id)?|private[_-]?key|signing[_-]?key)"
_NAME = rf"(?:pass(?:word|wd|phrase)?|pgpass|secret|credentials?|{_KEY}|signature)"
_TOKEN = r"token"
_VARIABLE = re.compile(rf"(?:.*_)?(?:PG|DB)?(?:{_NAME}|{_TOKEN})|POSGAP_WEBHOOK_URL", re.IGNORECASE)
# name=value, "name": "value", and name: value if the value has a digit, which words of a sentence lack.
_GIVEN = r"""["']?(?:\s*=\s*|(?<=["'])\s*:\s*|:\s*(?=[^\s"']*\d))["']?"""
_VALUE = r"""[^\s"'&;,)\]}]+"""
_USER = re.compile(r"""(?<=://)[^/\s"'?#]*@""")  # of an address, with the password
# Query parameters of an address, such as `?api-key=`, except a version that is a date, as in Azure's.
_QUERY = re.compile(r"""(?<=[?&])([^\s"'?#&=]+=)(?!\d{4}-\d\d-\d\d)[^\s"'#&;,)]*[^\s"'#&;,):.]""")
_ADDRESS = re.compile(r"""://[^\s"'?#]*\?[^\s"'#]+""")
_FORMS = (
    (_USER, f"{HIDDEN}@"),
    (_ADDRESS, lambda address: _QUERY.sub(rf"\1{HIDDEN}", address[0])),
    (re.compile(r"\b((?:Authorization\W{1,4}\w+|Bearer|Basic)\s+)[\w.~+/=-]{8,}", re.IGNORECASE), rf"\1{HIDDEN}"),
    (re.compile(rf"({_NAME}{_GIVEN}){_VALUE}", re.IGNORECASE), rf"\1{HIDDEN}"),
    # A mere number after it counts tokens of a text.
    (re.compile(rf"({_TOKEN}{_GIVEN})(?!\d+(?:\W|$)){_VALUE}", re.IGNORECASE), rf"\1{HIDDEN}"),
    (re.compile(r"\b(?:AKIA|ASIA|AIDA|AROA)[A-Z0-9]{16}\b"), HIDDEN),
    (re.compile(r"\b(?:hf_|sk-|gh[pousr]_|github_pat_|glpat-|xox[abprs]-)[\w-]{16,}"), HIDDEN),
    (re.compile(r"\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"), HIDDEN),  # a JSON web token
    (re.compile(r"(?<=hooks\.slack\.com/services/)[\w/-]+"), HIDDEN),
)


def redact(text: str) -> str:
    """The text with `***` in the place of every secret in it."""
    return _redact_known(text, _known_values())


def _redact_known(text: str, known: list[str]) -> str:
    for value in known:
        text = text.replace(value, HIDDEN)
    for form, hidden in _FORMS:
        text = form.sub(hidden, text)
    return text


def without_user(address: str) -> str:
    """The address without a user and a password, so that it can be shown, compared and opened."""
    return _USER.sub("", address)


def redact_value(value: Any) -> Any:
    """Returns a JSON value, or one before encoding, with secrets hidden as by `redact`: in every text but keys, and
    every text under a key that names a secret."""
    known = _known_values()

    def without_secrets(value: Any) -> Any:
        if isinstance(value, str):
            return _redact_known(value, known)
        if isinstance(value, dict):
            return {key: HIDDEN if _is_secret(key, each) else without_secrets(each) for key, each in value.items()}
        return [without_secrets(each) for each in value] if isinstance(value, list | tuple) else value

    return without_secrets(value)


def _is_secret(key: Any, value: Any) -> bool:
    if not isinstance(value, str) or not value or re.fullmatch(r"\$\w+", value):  # the name of a variable shows nothing
        return False
    return bool(_VARIABLE.fullmatch(str(key)))


def _known_values() -> list[str]:
    """Returns the values of environment variables whose names suggest secrets, the longest first."""
    values = {value for name, value in os.environ.items() if len(value) >= MIN_CHARACTERS and _VARIABLE.fullmatch(name)}
    return sorted(values, key=len, reverse=True)
