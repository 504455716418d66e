"""Policies as files: YAML that says what a gate demands of a candidate."""

import json
import logging
import re
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from posgap.foundation.bounds import read_bytes
from posgap.foundation.errors import Malformed
from posgap.foundation.files import digest_of, parse_as, write_text
from posgap.foundation.locations import cache_folder
from posgap.foundation.yaml_text import Quoted, parse_yaml
from posgap.gating.demands import MAX_BYTES, Guard, Policy
from posgap.tracking import registry

log = logging.getLogger(__name__)
_NUMBER, _YES_OR_NO = r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?", "true|false"
_WRITTEN: dict[Any, str] = {
    int: _NUMBER,
    float: _NUMBER,
    float | None: _NUMBER,
    bool: _YES_OR_NO,
}  # how a policy writes values of a type


def read_policy(path: Path) -> Policy:
    """Returns the policy of a YAML file, within limits; `PosgapError` names the file and its fault."""
    return parsed_policy(read_bytes(path, MAX_BYTES), str(path))


def parsed_policy(data: bytes, where: str) -> Policy:
    """Returns the policy in a YAML text; `PosgapError` begins with `where`."""
    values = parse_yaml(data, where, "a policy", MAX_BYTES)
    if not isinstance(values, dict):
        raise Malformed("no policy: write lines like `max_gap: 10`; `posgap policy` prints all", at=where)
    unknown = [str(name) for name in values if name not in Policy.model_fields]
    if unknown:
        raise Malformed(
            f"{unknown[0][:60]!r} is not a field of a policy; write one of {', '.join(Policy.model_fields)}", at=where
        )
    for name, value in values.items():
        _require_plain(Policy, name, value, where)
    guards = values.get("guards")
    for guard in guards.values() if isinstance(guards, dict) else ():
        for name, value in guard.items() if isinstance(guard, dict) else ():
            _require_plain(Guard, name, value, where)
    return parse_as(Policy, values, where)


def _require_plain(kind: type[BaseModel], name: str, value: object, where: str) -> None:
    """Raises `PosgapError` if a number or a yes or no is written so that it could be read as something else: in quotes,
    as octal (010), or with separators (1_0)."""
    written = _WRITTEN.get(kind.model_fields[name].annotation) if name in kind.model_fields else None
    if written and (isinstance(value, Quoted) or not re.fullmatch(written, str(value))):
        expected = "true or false" if written == _YES_OR_NO else "a number, like 5 or 0.5"
        raise Malformed(f"field `{name}`: {str(value)[:40]!r} is not {expected}, without quotes", at=where)


def policy_text(policy: Policy) -> str:
    """Returns the policy as YAML, a line for each value, below its meaning."""
    values = policy.model_dump(mode="json")
    values["guards"] = {
        name: guard.model_dump(mode="json", exclude_defaults=True) for name, guard in policy.guards.items()
    }
    return "\n".join(
        f"# {field.description}\n{name}: {json.dumps(values[name])}" for name, field in Policy.model_fields.items()
    )


def policy_digest(policy: Policy) -> str:
    """sha256 of all that a policy says, whichever of it a file wrote down."""
    return digest_of(policy.model_dump(mode="json"))


def registered_policy(name: str) -> Policy | None:
    """The policy of a registered model, which MLflow keeps; None if it has none."""
    text = registry.policy(name)
    return parsed_policy(text.encode(), f"policy of {name} in MLflow") if text else None


def as_file(policy: Policy) -> Path:
    """A file in the cache that says what a policy says."""
    file = cache_folder().absolute() / "policies" / f"{policy_digest(policy)}.yaml"
    write_text(file, policy_text(policy), lasting=False)
    return file


def policy_line(policy: Policy) -> str:
    """The policy by its version and digest, in a line."""
    return f"{policy.version or 'without a version'} ({policy_digest(policy)[:12]})"
