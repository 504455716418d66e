"""Who may do what on an MLflow server that asks for a log-in: `python access.py NAME ...`, with posgap installed.

Such a server (`mlflow server --app-name basic-auth`) has permissions by experiment and by registered model. Two users
share posgap's experiment: the steps of pipelines log into it as `pipeline`, and what promotes, rolls back, approves or
watches does so as `promote`, who alone may change the registered models that are named here.
"""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from posgap.foundation.errors import PosgapError
from posgap.foundation.fields import registered_name
from posgap.tracking import registry
from posgap.tracking.server import RequestRefused, call_mlflow, experiment_id

if TYPE_CHECKING:
    from mlflow.server.auth.client import AuthServiceClient

PIPELINE, PROMOTE = "pipeline", "promote"  # folders, each with a user's log-in
USERNAME, PASSWORD = "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"
ADMIN_USERNAME, ADMIN_PASSWORD = "MLFLOW_AUTH_ADMIN_USERNAME", "MLFLOW_AUTH_ADMIN_PASSWORD"
FOLDER = Path("/users")


class Login(NamedTuple):
    """A user's name and password."""

    name: str
    password: str


def read_login(folder: Path) -> Login:
    """The log-in in a folder of two files, as a Secret mounted as a volume makes it; `PosgapError` where one is
    missing."""
    values = [folder / USERNAME, folder / PASSWORD]
    if missing := [str(file) for file in values if not file.is_file()]:
        raise PosgapError(f"{missing[0]}: no such file; make the secret with {USERNAME} and {PASSWORD}")
    return Login(*(file.read_text(encoding="utf-8").strip() for file in values))


def allow(logins: Mapping[str, Login], names: Sequence[str]) -> None:
    """Makes both users, the experiment and the registered models where they are missing, and says what each user may.

    Asks the server as who is logged in, its administrator. Done twice it changes nothing; where a password is another
    by now, the user's becomes that one. Raises `PosgapError` where the server refuses, has no log-in, or the two users
    are one.
    """
    if logins[PIPELINE].name == logins[PROMOTE].name:
        raise PosgapError(f"{logins[PIPELINE].name}: steps and promotion need a user each")
    import mlflow
    from mlflow.server import get_app_client

    users: AuthServiceClient = get_app_client("basic-auth", tracking_uri=mlflow.get_tracking_uri())
    for login in logins.values():
        _make(users, login)
    logged = call_mlflow(experiment_id)
    for login in logins.values():
        _grant(users, login, "experiment", logged, "EDIT")
    for name in names:
        if registry.registered_model(name) is None:
            registry.create(name)
        # Of a model that a step made before, its user is the owner, until now.
        _grant(users, logins[PIPELINE], "registered_model", name, "READ")
        _grant(users, logins[PROMOTE], "registered_model", name, "MANAGE")


def _make(users: "AuthServiceClient", login: Login) -> None:
    try:
        call_mlflow(lambda _: users.get_user(login.name))
    except RequestRefused as refused:
        if not refused.is_missing:
            raise
        call_mlflow(lambda _: users.create_user(login.name, login.password))
    else:
        call_mlflow(lambda _: users.update_user_password(login.name, login.password))


def _grant(users: "AuthServiceClient", login: Login, kind: str, which: str, permission: str) -> None:
    """MLflow replaces no grant: one that says otherwise is taken back first."""
    if call_mlflow(lambda _: users.get_user_permission(login.name, kind, which)).permission == permission:
        return
    try:
        call_mlflow(lambda _: users.revoke_user_permission(login.name, kind, which))
    except RequestRefused as refused:
        if not refused.is_missing:
            raise
    call_mlflow(lambda _: users.grant_user_permission(login.name, kind, which, permission))


def main(words: Sequence[str] | None = None) -> None:
    """The command; the administrator's password comes from the environment, as the server itself has it."""
    parser = argparse.ArgumentParser(prog="access.py", description=allow.__doc__)
    parser.add_argument("names", nargs="+", metavar="NAME", help="registered models that promotion alone may change")
    parser.add_argument("--users", type=Path, default=FOLDER, help="folder with `pipeline` and `promote`; %(default)s")
    given = parser.parse_args(words)
    if not os.environ.get(ADMIN_PASSWORD):
        raise PosgapError(f"{ADMIN_PASSWORD} is not set: the password of the server's administrator")
    os.environ.setdefault("MLFLOW_TRACKING_URI", "http://localhost:5000")
    os.environ[USERNAME] = os.environ.get(ADMIN_USERNAME, "admin")
    os.environ[PASSWORD] = os.environ[ADMIN_PASSWORD]
    for name in given.names:
        registered_name(name)
    allow({who: read_login(given.users / who) for who in (PIPELINE, PROMOTE)}, given.names)
    print(f"{', '.join(given.names)}: only {PROMOTE}'s user may change these")


if __name__ == "__main__":
    try:
        main()
    except (PosgapError, ValueError) as error:
        sys.exit(f"posgap: error: {error}")
