"""Fixtures: public data, hand-made examples and tiny untrained models.

Each process of a run imports this file, so what takes long is imported in the fixtures that need it. A test tracks
nothing and draws nothing unless it asks for the fixtures `mlflow_store` and `pictures`.
"""

import base64
import functools
import gc
import importlib.metadata
import itertools
import logging
import os
import shutil
import signal
import sqlite3
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from examples import answered
from hypothesis import Phase, settings
from places import ROOT, public_file

if TYPE_CHECKING:
    from posgap.distillation.batches import Collator, Pair


# The same cases in every run, so that a change is judged and not luck; HYPOTHESIS_PROFILE=random draws new ones.
settings.register_profile("same", derandomize=True, database=None)
settings.register_profile("random", print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))
# For `make mutants`, where it is enough that a test fails.
settings.register_profile(
    "mutants", phases=(Phase.explicit, Phase.generate), derandomize=True, database=None, deadline=None
)


def pytest_configure():
    # Threads that wait for each other on a busy machine take many times as long as one; so in what tests start.
    os.environ["OMP_NUM_THREADS"] = "1"
    # A shell starts what runs in its background deaf to Ctrl-C, and so would be the commands that tests interrupt.
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items):
    """Files with nothing but long tests come first, so that processes that share the files end together."""
    quick = {item.path for item in items if not item.get_closest_marker("full")}
    items.sort(key=lambda item: item.path in quick)


def pytest_collection_finish():
    """The collector of garbage need not look again and again at what libraries have made by now, nor as often as it
    does: that was a tenth of the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 100)


@pytest.fixture(scope="session")
def empty_store() -> Path:
    """A new MLflow database, which takes seconds to make and is kept between sessions."""
    from mlflow.store.db import utils
    from sqlalchemy import Engine, event

    from posgap.tracking.server import make_ready

    @event.listens_for(Engine, "connect")
    def quickly(connection, _):
        """Commits do not wait for the disk, which took a third of the time: no test looks at what is left when the
        machine itself fails."""
        if isinstance(connection, sqlite3.Connection):
            connection.execute("PRAGMA synchronous = OFF")

    # The newest schema is the same for every test's database; to find it, MLflow imports each that ever was.
    utils._get_latest_schema_revision = functools.cache(utils._get_latest_schema_revision)

    name = f"mlflow-{importlib.metadata.version('mlflow')}.db"
    file = Path(tempfile.gettempdir()) / f"posgap-tests-{os.getuid()}" / name
    make_ready(file)
    return file


@pytest.fixture(autouse=True)
def own_place(tmp_path, monkeypatch):
    """Each test has a cache of its own, belongs to no run and tracks nothing."""
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_NAME", "POSGAP_PARENT_RUN_ID", "RANK"):
        monkeypatch.setenv(name, "")  # so that it is taken back, whoever sets it
        monkeypatch.delenv(name)
    monkeypatch.setenv("POSGAP_CACHE", str(tmp_path.with_name(f"{tmp_path.name}-cache")))


@pytest.fixture
def mlflow_store(tmp_path, empty_store, monkeypatch) -> Path:
    """A new MLflow database, in which what the test does is tracked."""
    file = tmp_path.with_name(f"{tmp_path.name}-mlflow") / "mlflow.db"
    file.parent.mkdir()
    shutil.copy(empty_store, file)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{file}")
    return file


DOT = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGP4DwABAQEAsTj2FAAAAABJRU5ErkJggg==")


@pytest.fixture
def pictures():
    """Has pictures drawn, for tests that look at them."""


@pytest.fixture(autouse=True)
def _a_dot_for_each_picture(request, monkeypatch):
    """Drawing takes longer than most of what tests look at: unless one asks for `pictures` each is a PNG of one dot."""

    def dot(figure, file, **_):
        (file.write if hasattr(file, "write") else Path(file).write_bytes)(DOT)

    if "pictures" not in request.fixturenames:
        monkeypatch.setattr("matplotlib.figure.Figure.savefig", dot)


@pytest.fixture
def registers(tmp_path, mlflow_store) -> Callable[[Path], str]:
    """Registers a model's folder as `tiny`, with the tag that promotion gives it, and makes it the champion, without a
    gate; returns its version."""
    import mlflow
    from mlflow.models import Model

    from posgap.foundation.files import digest_path
    from posgap.tracking import flavor
    from posgap.tracking.champions import CHAMPION
    from posgap.tracking.registry import DIGEST

    client = mlflow.MlflowClient()
    experiment = client.create_experiment("registered", (tmp_path / "artifacts").as_uri())

    def register(folder: Path) -> str:
        with mlflow.start_run(experiment_id=experiment):
            logged = Model.log(artifact_path=None, name="model", flavor=flavor, flavor_name=flavor.NAME, folder=folder)
        version = mlflow.register_model(logged.model_uri, "tiny", tags={DIGEST: digest_path(folder)}).version
        client.set_registered_model_alias("tiny", CHAMPION, version)
        return str(version)

    return register


@pytest.fixture(autouse=True)
def own_log():
    """What the command line sets up to log to its stderr ends with the test."""
    log = logging.getLogger("posgap")
    before = log.handlers, log.level
    yield
    log.handlers, log.level = before


@pytest.fixture(scope="session")
def kv_file() -> Path:
    return public_file("kv-retrieval-75_keys.jsonl.gz")


@pytest.fixture(scope="session")
def nq_file() -> Path:
    return public_file("nq-open-oracle.jsonl.gz")


@pytest.fixture(scope="session")
def hotpot_file() -> Path:
    return public_file("hotpotqa-distractor.json.gz")


@pytest.fixture(scope="session")
def s3_endpoint(tmp_path_factory):
    """The address of an S3 server on this machine: moto's, or the real one that POSGAP_S3 names."""
    import s3_servers

    with s3_servers.serving(os.environ.get("POSGAP_S3", "moto"), tmp_path_factory.mktemp("s3")) as address:
        yield address


_BUCKETS = itertools.count()


@pytest.fixture
def bucket(s3_endpoint, monkeypatch, tmp_path) -> str:
    """The URI of an empty bucket, credentials for it, and an empty cache."""
    import boto3

    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    given = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}
    given |= {"AWS_ENDPOINT_URL": s3_endpoint, "AWS_CONFIG_FILE": os.devnull, "AWS_EC2_METADATA_DISABLED": "true"}
    given |= {"AWS_SHARED_CREDENTIALS_FILE": os.devnull, "POSGAP_CACHE": str(tmp_path / "cache")}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    name = f"bucket-{next(_BUCKETS)}"
    boto3.client("s3").create_bucket(Bucket=name)
    return f"s3://{name}"


@pytest.fixture
def s3_calls(bucket):
    """The calls that posgap makes to S3."""
    from s3 import Calls

    from posgap.storage.client import client

    calls, events = Calls(), client().meta.events
    events.register("before-parameter-build.s3", calls.named)
    events.register("before-call.s3", calls.seen)
    yield calls
    events.unregister("before-parameter-build.s3", calls.named)
    events.unregister("before-call.s3", calls.seen)


@pytest.fixture
def pairs() -> "list[Pair]":
    return answered()


@pytest.fixture
def collate(pairs, tokenizer) -> "Collator":
    from posgap.distillation.batches import Collator
    from posgap.tasks.prompts import PromptBuilder
    from posgap.tasks.registry import TASKS

    return Collator(pairs, PromptBuilder(TASKS["kv"], tokenizer, 512, 4))


@pytest.fixture(scope="session")
def tokenizer():
    from posgap.demo import tiny_model

    return tiny_model.tokenizer()


@pytest.fixture
def model():
    """The tiny architecture before training, in float64 so that comparisons can be sharp."""
    from posgap.demo import tiny_model

    return tiny_model.untrained(0).double().eval()


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory) -> Path:
    """An untrained tiny model on disk."""
    from posgap.demo import tiny_model
    from posgap.models.loading import save_model

    folder = tmp_path_factory.mktemp("models") / "untrained"
    save_model(tiny_model.untrained(0), tiny_model.tokenizer(), folder)
    return folder


@pytest.fixture(scope="session")
def values_folder(tmp_path_factory, tokenizer) -> Path:
    """An untrained tiny model that answers with value digits, though hardly ever the right one."""
    import torch

    from posgap.demo import tiny_model
    from posgap.models.loading import save_model

    model = tiny_model.untrained(0)
    values = tokenizer.convert_tokens_to_ids([f" {d:x}" for d in range(16)])
    with torch.no_grad():
        for parameter in model.model.layers.parameters():
            parameter.mul_(4)
        model.model.embed_tokens.weight[[i for i in range(41) if i not in values]] *= 0.1
    folder = tmp_path_factory.mktemp("models") / "values"
    save_model(model, tokenizer, folder)
    return folder


@pytest.fixture(autouse=True)
def _model_folder_as_it_was(request) -> Iterator[None]:
    """Takes away the manifest that a test wrote into the folder that all of them share."""
    yield
    if "model_folder" in request.fixturenames:
        (request.getfixturevalue("model_folder") / "manifest.json").unlink(missing_ok=True)


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """SmolLM2-135M-Instruct in float32, for tests marked `real`; the first time it takes a minute and the network."""
    sys.path.append(str(ROOT / "benchmarks"))
    import real_models

    return real_models.folder("smollm2")


@pytest.fixture(scope="session")
def two_hop_folder(tmp_path_factory) -> Path:
    """An untrained tiny two-hop model on disk."""
    import tiny_two_hop

    from posgap.models.loading import save_model

    folder = tmp_path_factory.mktemp("models") / "two-hop"
    save_model(tiny_two_hop.untrained(0), tiny_two_hop.tokenizer(), folder)
    return folder


@pytest.fixture(scope="session")
def toy_file(tmp_path_factory) -> Path:
    """The compiled toy pipeline."""
    from toy_pipeline import write_toy

    return write_toy(tmp_path_factory.mktemp("pipelines"))


@pytest.fixture
def no_kfp_settings(tmp_path, monkeypatch):
    """Nothing of this machine's KFP settings, and no waits between tries and looks."""
    import kfp

    from posgap.pipelines import submission, transport

    monkeypatch.setattr(transport, "FIRST_WAIT", 0.01)
    monkeypatch.setattr(submission, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(kfp.Client, "_LOCAL_KFP_CONTEXT", str(tmp_path / "context.json"))
    monkeypatch.setenv("KF_PIPELINES_SA_TOKEN_PATH", str(tmp_path / "token"))
    for name in ("KFP_HOST", "KF_PIPELINES_ENDPOINT", "KF_PIPELINES_UI_ENDPOINT", "KFP_TOKEN"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def base(tmp_path):
    from written_sweeps import write_sweep

    return write_sweep(tmp_path / "base", [1.0, 0.6, 0.3, 0.6, 0.9])


@pytest.fixture(scope="session")
def registry_with_champion(tmp_path_factory, empty_store, model_folder) -> Path:
    """A folder with the database of a registry whose `tiny` has a champion, and with the champion's sweep."""
    from written_sweeps import copy_of, gated, promoted, write_sweep

    folder = tmp_path_factory.mktemp("champion")
    store = shutil.copy(empty_store, folder / "mlflow.db")
    model = copy_of(model_folder, folder / "good")
    swept = write_sweep(folder / "sweep-good", [0.995] * 5, model=model)
    worse = write_sweep(folder / "base", [1.0, 0.6, 0.3, 0.6, 0.9])
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{store}")
        promoted(folder, "good", model, swept, gated(folder, "good", swept, worse, name="tiny"))
    return folder


@pytest.fixture
def form(tmp_path, model_folder, mlflow_store):
    from examples import kv_example

    from posgap.data.reading import write_examples
    from posgap.options.preflight import PreflightConfig

    for name in ("train", "eval"):
        write_examples(tmp_path / f"{name}.jsonl", [kv_example(i) for i in range(3)])
    data = {"data_train": str(tmp_path / "train.jsonl"), "data_eval": str(tmp_path / "eval.jsonl")}
    return PreflightConfig(
        **data,
        base_model=str(model_folder),
        n_docs=4,
        methods="r1",
        inference_backend="transformers",
        out=tmp_path / "out",
    )
