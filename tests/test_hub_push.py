"""`posgap push`, by huggingface_hub's own client, to a hub on this machine."""

import json
import shutil

import pytest
from conftest import kv_example
from hub import TOKEN, hub_with
from huggingface_hub import ModelCard, constants
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

import posgap
from posgap.cli.main import main
from posgap.tasks.reading import write_examples

OPTIONS = {"n_docs": 4, "max_new_tokens": 2, "max_unanswered": 100}


@pytest.fixture
def hub(model_folder, tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)  # a protocol of its own between the client and a storage
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    with hub_with(model_folder) as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        template = "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.url + template)
        yield hub


@pytest.fixture
def model(model_folder, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(model_folder, folder)
    (folder / ".env").write_text("a secret")
    return folder


@pytest.fixture
def swept(model, tmp_path):
    rows = [kv_example(number) for number in range(4)]
    return posgap.sweep(model, rows, label="tiny", **OPTIONS).save(tmp_path / "swept")


def push(*arguments) -> int:
    with pytest.raises(SystemExit) as end:
        main(["push", *map(str, arguments)])
    return end.value.code


def test_a_model_is_pushed_with_its_figures_curve_and_report(hub, model, swept, capsys):
    assert push(swept, "--model", model, "--to", "someone/pushed", "--private") == 0
    assert capsys.readouterr().out == f"{hub.url}/someone/pushed/commit/{'0123456789abcdef' * 2 + '01234567'}\n"
    there, figures = hub.pushed["someone/pushed"]["main"], posgap.load(swept).figures
    expected = {"config.json", "model.safetensors", "tokenizer.json", "README.md"}
    assert expected < there.keys() and not {"manifest.json", ".env"} & there.keys()
    assert there["model.safetensors"] == (model / "model.safetensors").read_bytes()
    for name in ("sweep.png", "sweep.html", "sweep.json"):
        assert there[f"posgap/kv-4/{name}"] == (swept / name).read_bytes()
    assert hub.visibility == {"someone/pushed": "private"} and len(hub.commits) == 1
    card = ModelCard(there["README.md"].decode())
    named = {result.metric_type: result.metric_value for result in card.data.eval_results}
    assert named["position_gap"] == round(figures.gap, 2) and card.data.model_name == "pushed"
    assert (
        "# pushed" in card.text and "(posgap/kv-4/sweep.png)" in card.text and "(posgap/kv-4/sweep.html)" in card.text
    )


def test_what_the_card_there_says_stays_and_only_our_part_is_replaced(hub, model, tmp_path):
    (model / "README.md").write_text("---\nlicense: mit\ntags: [mine]\n---\n\n# A model\n\nIts story.\n")
    rows = [kv_example(number) for number in range(4)]
    first, later = (posgap.sweep(model, rows[:number], label="tiny", **OPTIONS) for number in (2, 4))
    assert push(first.save(tmp_path / "first"), "--model", model, "--to", "someone/pushed", "--no-report") == 0
    there = hub.pushed["someone/pushed"]["main"]
    assert "posgap/kv-4/sweep.html" not in there and b"sweep.html" not in there["README.md"]
    there["README.md"] += b"\nA line that was written there.\n"
    later, again = later.save(tmp_path / "later"), later.save(tmp_path / "again")
    assert push(later, again, "--model", model, "--to", "someone/pushed") == 0
    card = ModelCard(there["README.md"].decode())
    assert card.data.license == "mit" and card.data.tags == ["mine", "posgap", "position-bias", "long-context"]
    for text in ("Its story.", "A line that was written there."):
        assert card.text.count(text) == 1
    assert "2 examples" not in card.text and card.text.count("## Position gap") == 2
    assert {"posgap/kv-4/sweep.json", "posgap/kv-4.2/sweep.json"} < there.keys()
    assert len(card.data.eval_results) == 6


def test_a_branch_takes_it_and_is_made_if_need_be(hub, model, swept):
    for _ in range(2):
        assert push(swept, "--model", model, "--to", "someone/pushed", "--revision", "try/1") == 0
    branches = hub.pushed["someone/pushed"]
    assert "README.md" in branches["try/1"] and not branches["main"]


def test_of_an_adapter_the_model_that_it_makes_is_pushed(hub, model_folder, tmp_path):
    adapted = get_peft_model(AutoModelForCausalLM.from_pretrained(model_folder), LoraConfig(target_modules=["q_proj"]))
    adapted.peft_config["default"].base_model_name_or_path = str(model_folder)
    adapted.save_pretrained(tmp_path / "adapter")
    swept = posgap.sweep(tmp_path / "adapter", [kv_example()], **OPTIONS).save(tmp_path / "swept")
    assert push(swept, "--model", tmp_path / "adapter", "--to", "someone/pushed") == 0
    assert {"model.safetensors", "config.json"} < hub.pushed["someone/pushed"]["main"].keys()


def test_a_dry_run_asks_nothing_and_shows_the_card(hub, model, swept, monkeypatch, capsys):
    monkeypatch.delenv("HF_TOKEN")
    assert push(swept, "--model", model, "--to", "someone/pushed", "--dry-run") == 0
    shown = capsys.readouterr().out
    assert "posgap/kv-4/sweep.png  " in shown and "model-index:" in shown and "## Position gap" in shown
    assert not hub.asked


def refused(capsys, *arguments) -> str:
    assert push(*arguments) == 2
    return capsys.readouterr().err


def test_what_cannot_be_pushed_is_refused_in_a_line(hub, model, swept, tmp_path, monkeypatch, capsys):
    given = ["--model", model, "--to", "someone/pushed"]
    write_examples(tmp_path / "e.jsonl", [kv_example()])
    assert "write the name of a model on the hub" in refused(capsys, swept, "--model", model, "--to", "no name")
    assert "sweep.json" in refused(capsys, tmp_path, *given)
    assert "is another model than" in refused(capsys, swept, "--model", tmp_path / "e.jsonl", "--to", "someone/pushed")
    monkeypatch.setenv("HF_TOKEN", "hf_of_somebody_else")
    said = refused(capsys, swept, *given)
    assert "the hub refuses (401)" in said and "does the token in HF_TOKEN write there?" in said
    assert "hf_of_somebody_else" not in said and not hub.pushed
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "none"))
    assert "set HF_TOKEN" in refused(capsys, swept, *given)
    weights = model / "config.json"
    weights.write_text(json.dumps(json.loads(weights.read_text()) | {"another": 1}))
    assert "is another model than" in refused(capsys, swept, *given)


@pytest.mark.parametrize(
    ("card", "complaint"),
    [
        (b"---\nlicense: [\n---\n", "metadata, between two lines of ---, cannot be read"),
        (b"---\n- mit\n---\n", "cannot be read: repo card metadata block should be a dict"),
        (b"\xff\xfe", "is no text in UTF-8"),
    ],
)
def test_a_card_that_cannot_be_read_is_said_before_anything_is_pushed(hub, model, card, complaint, tmp_path, capsys):
    (model / "README.md").write_bytes(card)
    swept = posgap.sweep(model, [kv_example()], **OPTIONS).save(tmp_path / "swept")
    for dry in ([], ["--dry-run"]):
        assert complaint in refused(capsys, swept, "--model", model, "--to", "someone/pushed", *dry)
    assert not hub.asked


def test_a_hub_that_is_not_there_is_said(model, swept, monkeypatch, capsys):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert "the hub cannot be reached" in refused(capsys, swept, "--model", model, "--to", "someone/pushed")
