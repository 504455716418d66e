"""MLflow's tables are brought up to date by one process, when nobody else uses them; others wait until they are."""

import os
import subprocess
import sys
from contextlib import contextmanager

import mlflow.store.db.utils as of_mlflow
import postgres
import psycopg
import pytest
import sqlalchemy
from alembic.command import upgrade as move
from mlflow.store.tracking.dbmodels.initial_models import Base as InitialBase
from places import ROOT

pytestmark = [pytest.mark.full, postgres.needs_postgres]
LOGIN = {"PGUSER": "mlflow", "PGPASSWORD": "p@ss/wo%rd"}
PROGRAM = ROOT / "infra/kubernetes/base/namespaced/mlflow/migration.py"
AUTH = str(PROGRAM.with_name("basic_auth.ini"))
OLDER = "97727af70f4d"  # of MLflow 2.3
WAITS = "waiting for the Job mlflow-migrate: alembic_version: the database has "


@pytest.fixture(scope="module")
def server():
    with postgres.database(LOGIN) as port:
        yield LOGIN | {"PGHOST": "127.0.0.1", "PGPORT": str(port)}


@pytest.fixture
def database(server, tmp_path, monkeypatch):
    """An empty database, in the environment of this process and of those that it starts."""
    name = tmp_path.name
    for variable, value in {**server, "PGDATABASE": name, "MLFLOW_AUTH_CONFIG_PATH": AUTH}.items():
        monkeypatch.setenv(variable, value)
    monkeypatch.setenv("PATH", f"{postgres.BINARIES}:{os.environ['PATH']}")
    subprocess.run(["createdb", name], check=True)
    return name


def make_older() -> None:
    """Makes tables as an older MLflow made them, with an experiment in them."""
    engine = sqlalchemy.create_engine("postgresql+psycopg:///")
    InitialBase.metadata.create_all(engine)
    config = of_mlflow._get_alembic_config("postgresql+psycopg:///")
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        move(config, OLDER)
    engine.dispose()
    ask("INSERT INTO experiments (name, lifecycle_stage) VALUES ('of an older MLflow', 'active')")


def ask(query: str) -> list[tuple]:
    with psycopg.connect(autocommit=True) as connection:
        answer = connection.execute(query)
        return answer.fetchall() if answer.description else []


@contextmanager
def running(verb: str):
    """The program, whose output is read line by line."""
    command = [sys.executable, PROGRAM, verb]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def ended(process: subprocess.Popen) -> tuple[int, str]:
    """How it ended, and its last line."""
    out, err = process.communicate(timeout=300)
    return process.returncode, (err if process.returncode else out).splitlines()[-1]


@pytest.mark.nightly  # two starters and a server wait for each other, for minutes
def test_two_starters_make_an_empty_database_s_tables_once_and_a_server_waits(database):
    with running("wait") as waiting:
        assert waiting.stdout.readline().startswith(f"{WAITS}no revision, and is to have ")
        with running("upgrade") as first, running("upgrade") as second:
            said = sorted([ended(first), ended(second)])
        assert said == [(0, "the database is up to date"), (0, "the database was brought up to date")]
        assert waiting.wait(timeout=60) == 0
    assert ask("SELECT name FROM experiments") == ask("SELECT username FROM users") == []


@pytest.mark.nightly
def test_an_older_server_is_waited_for_and_what_is_in_its_tables_is_kept(database):
    make_older()
    older = psycopg.connect(application_name="an older server")
    with older, running("upgrade") as upgrading:
        waits = upgrading.stdout.readline()
        assert waits == "waiting until an older server at 127.0.0.1 no longer uses the database\n"
        with running("wait") as waiting:
            assert waiting.stdout.readline().startswith(f"{WAITS}revision {OLDER}, and is to have ")
        assert upgrading.poll() is None and ask("SELECT version_num FROM alembic_version") == [(OLDER,)]
        older.close()
        assert ended(upgrading) == (0, "the database was brought up to date")
    assert ask("SELECT name FROM experiments") == [("of an older MLflow",)]
    # Up to date it keeps nobody waiting, whoever is connected.
    with psycopg.connect(application_name="a server"), running("upgrade") as again, running("wait") as waiting:
        assert ended(again) == (0, "the database is up to date") and waiting.wait(timeout=60) == 0


@pytest.mark.parametrize("verb", ["upgrade", "wait"])
def test_a_database_of_a_newer_mlflow_is_left_alone(database, verb):
    ask("CREATE TABLE alembic_version (version_num text)")
    ask("INSERT INTO alembic_version VALUES ('of 2030')")
    with running(verb) as refused:
        code, line = ended(refused)
    assert code == 1 and line.startswith(
        "posgap: error: alembic_version: the database has revision of 2030, which MLflow"
    )
    assert ask("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'") == [(1,)]
