"""The history of a registered model, and the way back."""

import json
import shutil

import mlflow
import pytest
from command_line import fails, run
from refusals import refuses
from written_sweeps import copy_of, promotion

from posgap.cli.main import main
from posgap.foundation.errors import PosgapError
from posgap.foundation.files import read_json
from posgap.options.policy import PolicyConfig
from posgap.tracking import champions
from posgap.verbs.policy import policy as set_policy
from posgap.verbs.promote import promote

pytestmark = pytest.mark.usefixtures("mlflow_store")


@pytest.mark.full
def test_history_shows_who_was_champion_and_rollback_brings_the_former_back(tmp_path, base, model_folder, capsys):
    assert fails(capsys, "view", "models:/tiny") == "tiny: no registered model of this name in MLflow"
    assert "no version has the alias `champion`" in fails(capsys, "rollback", "tiny", "--reason", "x")
    promote(promotion(tmp_path, "one", copy_of(model_folder, tmp_path / "one"), base))
    assert "no version has the alias `previous`" in fails(capsys, "rollback", "tiny", "--reason", "x")
    promote(promotion(tmp_path, "two", copy_of(model_folder, tmp_path / "two"), base))
    assert run(capsys, "rollback", "tiny", "--reason", "answers in French")[0] == 0
    client = mlflow.MlflowClient()
    aliases = {name: str(number) for name, number in client.get_registered_model("tiny").aliases.items()}
    assert aliases == {"champion": "1", "previous": "2"}
    with pytest.raises(SystemExit):
        main(["view", "models:/tiny"])
    out = capsys.readouterr().out
    first, second, changes = out.splitlines()[2], out.splitlines()[3], out.splitlines()[-3:]
    assert "| champion " in first and "| previous " in second
    header, cells = ([cell.strip() for cell in line.split("|")[1:-1]] for line in (out.splitlines()[0], first))
    assert cells[header.index("champion (UTC)")].count(" to ") == 2 and first.rstrip(" |").endswith("to now")
    assert second.count(" to 2") == 1 and "to now" not in second
    told = [[cell.strip() for cell in line.split("|")[2:-1]] for line in changes]
    assert told == [["", "1", "promoted"], ["1", "2", "promoted"], ["2", "1", "rolled back: answers in French"]]
    with pytest.raises(SystemExit):
        main(["view", "models:/tiny", "--json"])
    told = json.loads(capsys.readouterr().out)
    assert [*told] == ["name", "versions", "changes"] and told["name"] == "tiny"
    shown = "version registered aliases method gap mean worst gate policy data guards champion"
    assert " ".join(told["versions"][0]) == shown and list(told["versions"][0].values()) == cells
    assert [[change[key] for key in ("before", "version")] for change in told["changes"]] == [
        ["", "1"],
        ["1", "2"],
        ["2", "1"],
    ]


@pytest.mark.nightly
@pytest.mark.full
def test_what_was_rolled_back_returns_only_with_a_reason(tmp_path, base, model_folder, capsys):
    client = mlflow.MlflowClient()
    for name in ("one", "two"):
        promote(promotion(tmp_path, name, copy_of(model_folder, tmp_path / name), base))
    run(capsys, "rollback", "tiny", "--reason", "answers in French")
    assert str(client.get_registered_model("tiny").aliases["champion"]) == "1"
    again = promotion(tmp_path, "two", tmp_path / "two", base, again="-again")
    with refuses(PosgapError, "tiny version 2", "answers in French"):
        promote(again)
    assert str(client.get_registered_model("tiny").aliases["champion"]) == "1"
    # Nor with a file more in its folder.
    (shutil.copytree(tmp_path / "two", tmp_path / "more") / "README.md").write_text("A word more.")
    with refuses(PosgapError, "tiny version 2", "answers in French"):
        promote(promotion(tmp_path, "more", tmp_path / "more", base))
    client.delete_model_version("tiny", "3")
    # Nor by an alias and a tag that somebody set by hand.
    client.set_registered_model_alias("tiny", "challenger", "2")
    assert "was rolled back: answers in French" in fails(capsys, "approve", "tiny", "2")
    client.set_model_version_tag("tiny", "2", "posgap.approved", "Ada")
    promote(promotion(tmp_path, "one", tmp_path / "one", base, again="-again"))
    assert str(client.get_registered_model("tiny").aliases["champion"]) == "1"
    client.delete_model_version_tag("tiny", "2", "posgap.approved")
    # With a reason it may wait for an approval, once.
    waits = again.model_copy(update={"despite_rollback": "French is asked for", "approval": True})
    promote(waits)
    assert run(capsys, "approve", "tiny", "2")[0] == 0
    assert str(client.get_registered_model("tiny").aliases["champion"]) == "2"
    why = champions.changes(client.get_registered_model("tiny"))[-1]["why"]
    assert why.startswith("approved by ") and why.endswith(", though rolled back before: French is asked for")
    assert run(capsys, "rollback", "tiny", "--reason", "answers in French")[0] == 0
    client.set_registered_model_alias("tiny", "challenger", "2")
    assert "was rolled back: answers in French" in fails(capsys, "approve", "tiny", "2")
    client.delete_registered_model_alias("tiny", "challenger")
    promote(again.model_copy(update={"despite_rollback": "French is asked for", "force": True}))
    assert str(client.get_registered_model("tiny").aliases["champion"]) == "2"
    last = champions.changes(client.get_registered_model("tiny"))[-1]
    assert last["why"] == "promoted, though rolled back before: French is asked for"
    assert client.get_model_version("tiny", "2").description.startswith("Gap 0")
    # A reason is for one rollback, also if the version became the champion by another way than the approval it was for.
    assert run(capsys, "rollback", "tiny", "--reason", "answers in French")[0] == 0
    client.delete_model_version_tag("tiny", "2", "posgap.approved")
    promote(waits.model_copy(update={"force": True}))
    assert str(client.get_registered_model("tiny").aliases["challenger"]) == "2"
    promote(again.model_copy(update={"despite_rollback": "French is asked for", "force": True}))
    assert run(capsys, "rollback", "tiny", "--reason", "answers in French")[0] == 0
    client.set_registered_model_alias("tiny", "challenger", "2")
    assert "was rolled back: answers in French" in fails(capsys, "approve", "tiny", "2")
    client.delete_registered_model_alias("tiny", "challenger")
    promote(again.model_copy(update={"despite_rollback": "French is asked for", "force": True}))
    assert str(client.get_registered_model("tiny").aliases["champion"]) == "2"
    # That reign was ended by no rollback, so it needs no reason.
    promote(promotion(tmp_path, "three", copy_of(model_folder, tmp_path / "three"), base))
    promote(promotion(tmp_path, "two", tmp_path / "two", base, again="-once-more"))
    assert str(client.get_registered_model("tiny").aliases["champion"]) == "2"


@pytest.mark.parametrize("reason", ["", "two\nlines", "x" * 301])
def test_a_reason_is_one_line(reason, capsys):
    assert "--reason" in fails(capsys, "rollback", "tiny", "--reason", reason)


def test_somebody_s_tag_is_no_part_of_the_history():
    client = mlflow.MlflowClient()
    client.create_registered_model("tiny", tags={f"{champions.CHANGE}note": "hello", "other": "x"})
    assert champions.changes(client.get_registered_model("tiny")) == []


@pytest.mark.full
def test_what_needs_approval_waits_as_challenger(tmp_path, base, model_folder, capsys):
    client = mlflow.MlflowClient()

    def promoted(name, approval, again="", policy=""):
        model = tmp_path / name
        config = promotion(tmp_path, name, model if again else copy_of(model_folder, model), base, again=again)
        if policy:
            (tmp_path / "policy.yaml").write_text(policy)
            set_policy(PolicyConfig(name="tiny", file=tmp_path / "policy.yaml"))
        promote(config.model_copy(update={"approval": approval}))
        return read_json(config.out / "promotion.json")

    def aliases():
        return {name: str(number) for name, number in client.get_registered_model("tiny").aliases.items()}

    assert fails(capsys, "approve", "tiny", "1") == "tiny: no registered model of this name in MLflow"
    promoted("one", approval=False)
    assert promoted("two", approval=True)["alias"] == "challenger"
    assert aliases() == {"champion": "1", "challenger": "2"}
    assert "version 3: is not the challenger (version 2 is)" in fails(capsys, "approve", "tiny", "3")
    for _ in range(2):  # twice is as good
        assert run(capsys, "approve", "tiny", "2")[0] == 0
        assert aliases() == {"champion": "2", "previous": "1"}
    # In the UI a person gives it the tag, and the next promotion of the name makes it the champion.
    promoted("three", approval=False, policy="approval: true\nallow: [trial]")
    client.set_model_version_tag("tiny", "3", "posgap.approved", "Ada")
    assert promoted("three", approval=True, again="-again")["alias"] == "champion"
    assert aliases() == {"champion": "3", "previous": "2"}
    # What was judged against another champion than that of today is not promoted.
    promoted("four", approval=True)
    run(capsys, "rollback", "tiny", "--reason", "x")
    assert "version 4: was judged against another champion than version 2" in fails(capsys, "approve", "tiny", "4")
    assert aliases() == {"champion": "2", "previous": "3", "challenger": "4"}
    whys = [change["why"].partition(" by ") for change in champions.changes(client.get_registered_model("tiny"))]
    assert [why for why, _, _ in whys] == ["promoted", "approved", "approved", "rolled back: x"]
    assert whys[2][2] == "Ada"
