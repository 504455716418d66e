"""Brings the tables of MLflow's database up to date, or waits until they are: `python migration.py upgrade|wait`.

MLflow's own commands change the tables. Here it is decided whether there is anything to change, and when: by one
process at a time, and not before an older server that still uses them has gone. Host, user and password of the
PostgreSQL database are libpq's variables.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import mlflow
import psycopg
from alembic.script import ScriptDirectory

from posgap.foundation.errors import PosgapError

URL = "postgresql+psycopg:///"
# Where MLflow keeps the history of its tables, and of those of its users beside them, by the table that says which
# revision a database has.
HISTORIES = {"alembic_version": "store/db_migrations", "alembic_version_auth": "server/auth/db/migrations"}
COMMANDS = (
    [sys.executable, "-m", "mlflow", "db", "upgrade", URL],
    [sys.executable, "-m", "mlflow.server.auth", "db", "upgrade", "--url", URL],
)
OURS = "posgap-migration"  # by this name PostgreSQL knows the connections of this program
SECONDS = 2.0  # between two looks


def behind(connection: psycopg.Connection) -> Iterator[str]:
    """Yields a line for each history of which the database has not the latest revision that this MLflow knows.

    `PosgapError` where it has one that this MLflow does not know.
    """
    for table, folder in HISTORIES.items():
        history = ScriptDirectory(str(Path(mlflow.__file__).parent / folder))
        found = _value(connection, "SELECT to_regclass(%s)", table) and _value(
            connection, f"SELECT max(version_num) FROM {table}"
        )
        latest = history.get_current_head()
        if found and found not in {script.revision for script in history.walk_revisions()}:
            raise PosgapError(
                f"{table}: the database has revision {found}, which MLflow {mlflow.__version__} does not know: it is "
                "of a newer one; deploy that again, or restore a backup of this one"
            )
        if found != latest:
            there = f"revision {found}" if found else "no revision"
            yield f"{table}: the database has {there}, and is to have {latest}"


def upgrade() -> None:
    """Brings the database up to date, if it is not, as soon as nobody else is connected to it."""
    with _connected() as connection:
        # Held until this connection ends: of two processes the second finds nothing left to do.
        connection.execute("SELECT pg_advisory_lock(hashtext(%s))", [OURS])
        while (lacking := [*behind(connection)]) and (others := _others(connection)):
            _say(f"waiting until {', '.join(others)} no longer uses the database")
        for command in COMMANDS if lacking else ():
            subprocess.run(command, check=True)
    print("the database was brought up to date" if lacking else "the database is up to date")


def wait() -> None:
    """Returns as soon as the database is up to date."""
    while True:
        with _connected() as connection:
            lacking = [*behind(connection)]
        if not lacking:
            return
        _say(f"waiting for the Job mlflow-migrate: {'; '.join(lacking)}")


def _connected() -> psycopg.Connection:
    """A connection, as soon as there is a database that takes it."""
    while True:
        try:
            return psycopg.connect(autocommit=True, application_name=OURS)
        except psycopg.OperationalError as error:
            _say(" ".join(str(error).split()))


def _others(connection: psycopg.Connection) -> list[str]:
    """Who else of the same user is connected: a server, most likely, or a backup."""
    found = connection.execute(
        "SELECT DISTINCT coalesce(nullif(application_name, ''), 'a server') || ' at ' || coalesce(host(client_addr), "
        "'this machine') FROM pg_stat_activity WHERE datname = current_database() AND usename = current_user "
        "AND application_name <> %s",
        [OURS],
    )
    return sorted(name for (name,) in found)


def _value(connection: psycopg.Connection, query: str, *values: str) -> str | None:
    row = connection.execute(query, values).fetchone()
    return row[0] if row else None


def _say(reason: str) -> None:
    print(reason, flush=True)
    time.sleep(SECONDS)


def main(words: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python migration.py", description=__doc__)
    parser.add_argument("verb", choices=["upgrade", "wait"])
    upgrade() if parser.parse_args(words).verb == "upgrade" else wait()


if __name__ == "__main__":
    try:
        main()
    except (PosgapError, subprocess.CalledProcessError) as error:
        sys.exit(f"posgap: error: {error}")
