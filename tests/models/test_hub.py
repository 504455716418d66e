"""Models by name: what is meant as a path never reaches the hub, and the hub is asked once, briefly, or not at all."""

import json
import os
import shutil
import time
from pathlib import Path

import pytest
from examples import kv_example
from hub import COMMIT, NAME, TAG, hub_with
from huggingface_hub import constants

from posgap.cli.main import main
from posgap.data.reading import write_examples
from posgap.foundation.errors import NotFound, Unreadable
from posgap.foundation.files import digest_path
from posgap.foundation.locations import is_hub_name
from posgap.mitigations.in_force import load_model
from posgap.models import loading
from posgap.models.loading import _snapshot, commit_on_hub, load_config, load_tokenizer
from posgap.options.sweep import SweepConfig
from posgap.storage.inputs import ByName, OnDisk, source
from posgap.tracking.promotion import Promotion, promote_version
from posgap.tracking.registry import DIGEST, champion
from posgap.tracking.runs import start_run
from posgap.verbs.inputs import sources


@pytest.fixture
def hub(model_folder, tmp_path, monkeypatch):
    """The only hub there is for this process, whose cache is empty."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    _snapshot.cache_clear()
    with hub_with(model_folder) as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        template = "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.url + template)
        yield hub
    _snapshot.cache_clear()


def asked_again(hub) -> list[str]:
    """What the hub was asked since the last time, and what it is asked next is asked by another process."""
    asked = [*hub.asked]
    hub.asked.clear()
    _snapshot.cache_clear()
    return asked


PATHS = ("run/scaled", "./scaled", "../scaled", "/scaled", "~/scaled", "a/b/c", "a//b", "a b", "a--b/c", "x" * 300, "")


def test_what_can_only_be_a_path_is_never_taken_for_a_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    for text in PATHS:
        assert not is_hub_name(text)
    with pytest.raises(NotFound, match="^run/scaled: "):
        source("run/scaled")
    for text in ("gpt2", "someone/tiny", "someone/tiny.v1", "someone/tiny@v1", "Qwen/Qwen2.5-7B-Instruct@refs/pr/1"):
        assert source(text) == ByName(text)
    assert source("accounts/a/models/b", may_be_any_name=True) == ByName("accounts/a/models/b")
    assert source("run") == OnDisk(Path("run"))


def test_a_server_elsewhere_may_call_its_models_as_it_likes(tmp_path):
    (tmp_path / "examples.jsonl").touch()
    asked = {"examples": tmp_path / "examples.jsonl", "model": "accounts/a/models/b", "out": tmp_path / "out"}
    there = sources(SweepConfig(**asked, backend="openai", base_url="http://127.0.0.1:9/v1"))
    assert there["model"] == ByName("accounts/a/models/b")
    with pytest.raises(NotFound, match="^model: accounts/a/models/b: "):
        sources(SweepConfig(**asked))


@pytest.mark.parametrize("place", ["/dev/zero", "/", "pipe"])
def test_what_has_no_end_is_refused_as_an_input(place, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for location in (str(tmp_path / place), tmp_path / place):
        with pytest.raises(Unreadable, match=f"^{location}: "):
            source(location)


def test_a_mistyped_path_asks_the_hub_nothing(hub, tmp_path, capsys):
    write_examples(tmp_path / "examples.jsonl", [kv_example()])
    words = [
        "sweep",
        "--examples",
        tmp_path / "examples.jsonl",
        "--model",
        "run/none/scaled",
        "--out",
        tmp_path / "out",
    ]
    with pytest.raises(SystemExit) as ended:
        main([*map(str, words)])
    assert ended.value.code == 2
    assert "error: model: run/none/scaled: " in capsys.readouterr().err
    assert hub.asked == []


def test_all_of_a_model_comes_from_one_commit_of_the_hub_which_is_asked_for_it_once(hub):
    hub.files |= {"consolidated.safetensors": b"all of it again", "onnx/model.safetensors": b"and again"}
    tokenizer, config = load_tokenizer(NAME), load_config(NAME)
    assert len(tokenizer) == config.vocab_size and commit_on_hub(NAME) == COMMIT
    asked = asked_again(hub)
    assert len([request for request in asked if "/revision/" in request]) == 1
    assert not any("safetensors" in request for request in asked)
    load_model(NAME)
    asked = asked_again(hub)
    assert any("GET" in request and "model.safetensors" in request for request in asked)
    assert not any(name in request for request in asked for name in ("consolidated", "onnx/"))
    assert not any("GET" in request and "tokenizer.json" in request for request in asked)
    load_model(NAME)
    assert not any("/resolve/" in request for request in asked_again(hub))


def test_a_name_takes_a_revision(hub):
    assert commit_on_hub(f"{NAME}@{TAG}") == commit_on_hub(f"{NAME}@{COMMIT}") == COMMIT
    with pytest.raises(NotFound, match=rf"^{NAME}@v2: .*: 404 "):
        load_config(f"{NAME}@v2")


def test_offline_the_hub_is_asked_nothing_and_a_line_says_what_is_missing(hub, monkeypatch):
    complaint = f"^{NAME}(@{TAG})?: .*: HF_HUB_OFFLINE "
    with monkeypatch.context() as patch:
        patch.setattr(constants, "HF_HUB_OFFLINE", True)
        with pytest.raises(NotFound, match=complaint):
            load_tokenizer(NAME)
    assert asked_again(hub) == []
    load_tokenizer(NAME)
    assert asked_again(hub)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    load_tokenizer(NAME)
    with pytest.raises(NotFound, match=complaint):
        load_tokenizer(f"{NAME}@{TAG}")
    assert asked_again(hub) == []


def test_without_a_network_the_line_does_not_say_that_the_hub_lacks_the_model(hub, monkeypatch):
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
    with pytest.raises(NotFound, match=rf"^{NAME}: .*\(ConnectError: .*\);"):
        load_tokenizer(NAME)


def test_a_hub_that_hangs_is_waited_for_briefly(hub, monkeypatch):
    monkeypatch.setattr(loading, "HUB_SECONDS", 0.5)
    hub.hangs = True
    began = time.monotonic()
    with pytest.raises(NotFound, match=f"^{NAME}: "):
        load_tokenizer(NAME)
    assert time.monotonic() - began < 15
    hub.hangs = False


@pytest.mark.full
@pytest.mark.usefixtures("mlflow_store")
def test_a_model_on_disk_is_promoted_without_the_hub(model_folder, tmp_path, monkeypatch):
    """Not even for what the hub says of the model that its config names."""
    asked = []
    monkeypatch.setattr("socket.getaddrinfo", lambda host, *_, **__: asked.append(host) or 1 / 0)
    model = Path(shutil.copytree(model_folder, tmp_path / "model"))
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "_name_or_path": NAME}))
    with start_run("promote", {}, tmp_path / "out") as run:
        promote_version(Promotion("a-model", model, {DIGEST: digest_path(model)}, run))
    assert str(champion("a-model").version) == "1"
    assert asked == []
