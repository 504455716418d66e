"""What ends a container's program stands in its pod's termination message, and whether it would end it again."""

import sys

import click
import pytest

from posgap.cli.main import main
from posgap.foundation import termination
from posgap.foundation.errors import GateRefusal, NoServer, PosgapError, TerminationSignal
from posgap.foundation.termination import leave_message
from posgap.kubeflow.arguments import to_config
from posgap.options.promote import PromoteConfig
from posgap.storage.client import explain_errors
from posgap.tracking.leases import LeaseLost
from posgap.tracking.server import NoAnswer, RequestRefused


@pytest.fixture
def message(tmp_path, monkeypatch):
    file = tmp_path / "termination-log"
    file.touch()
    monkeypatch.setattr(termination, "FILE", file)
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    return file


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (PosgapError("m: no such folder"), "posgap refused: m: no such folder"),
        (GateRefusal("gap 12"), "posgap refused: gap 12"),
        (RequestRefused("no permission"), "posgap refused: no permission"),
        (NoServer("S3 cannot be reached"), "posgap failed: S3 cannot be reached"),
        (NoAnswer("MLflow: HTTP 503"), "posgap failed: MLflow: HTTP 503"),
        (LeaseLost("tiny"), "posgap failed: tiny"),
        (TerminationSignal("stopped"), "posgap failed: stopped"),
        (MemoryError(), "posgap failed: MemoryError"),
        (PosgapError("two\n  lines, with s3://me:password@bucket"), "posgap refused: two lines"),
    ],
)
def test_a_refusal_is_told_from_what_may_pass(message, error, said):
    leave_message(error)
    assert message.read_text().startswith(said)
    assert "password" not in message.read_text()


def test_the_first_program_of_a_container_to_end_is_heard(message):
    leave_message(NoServer("rank 1: killed"))
    leave_message(PosgapError("one of 2 processes failed"))
    assert message.read_text() == "posgap failed: rank 1: killed"


def test_a_stopped_command_leaves_that_and_not_click_s_word_for_it(message, monkeypatch):
    def stop() -> None:
        raise TerminationSignal("stopped by SIGTERM")

    monkeypatch.setattr("posgap.cli.main.build", lambda: click.Command("posgap", callback=stop))
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 143 and message.read_text() == "posgap failed: stopped by SIGTERM"


def test_a_long_message_is_short_enough_for_a_workflow(message):
    leave_message(PosgapError("x" * 10_000))
    assert len(message.read_bytes()) < 500


def test_where_there_is_no_such_file_none_is_made(tmp_path, monkeypatch):
    monkeypatch.setattr(termination, "FILE", tmp_path / "termination-log")
    leave_message(PosgapError("m"))
    assert not list(tmp_path.glob("termination-log"))


def test_a_command_and_a_step_leave_theirs(message, tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["merge", str(tmp_path / "nowhere"), "--out", str(tmp_path / "out")])
    assert message.read_text().startswith("posgap refused: ") and "nowhere" in message.read_text()
    message.write_text("")
    places = dict.fromkeys(("model", "gate", "sweep", "out"), str(tmp_path))
    to_config(PromoteConfig, places)
    try:
        raise PosgapError("not the champion of today")
    except PosgapError as error:
        sys.excepthook(type(error), error, error.__traceback__)
    assert message.read_text() == "posgap refused: not the champion of today"
    assert sys.excepthook is termination._leave_and_print
    assert "Traceback" in capsys.readouterr().err  # KFP's log keeps it


@pytest.mark.parametrize(
    ("code", "may_pass"), [("NoSuchKey", False), ("AccessDenied", False), ("SlowDown", True), ("412", True)]
)
def test_what_s3_refuses_for_good_is_told_from_what_may_pass(code, may_pass):
    from botocore.exceptions import ClientError, ConnectTimeoutError, NoCredentialsError

    def kind(error):
        with pytest.raises(PosgapError) as raised, explain_errors("s3://b/k"):
            raise error
        return raised.value.may_pass

    assert kind(ClientError({"Error": {"Code": code, "Message": ""}}, "GetObject")) is may_pass
    assert kind(ConnectTimeoutError(endpoint_url="http://s3")) and not kind(NoCredentialsError())
