"""Fixtures: public data, hand-made examples and tiny untrained models."""

import functools
import gc
import importlib.metadata
import itertools
import logging
import os
import re
import shutil
import signal
import sqlite3
import sys
import tempfile
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from itertools import accumulate
from pathlib import Path

import pytest
import s3_servers
import tiny_two_hop
import torch
from hypothesis import Phase, settings
from s3 import Calls

from posgap.demo import tiny_model
from posgap.distillation.batches import Collator, Pair
from posgap.models.loading import save_model
from posgap.tasks.content import content
from posgap.tasks.examples import Document, Example, KVExample
from posgap.tasks.prompts import PromptBuilder
from posgap.tasks.registry import TASKS
from posgap.tasks.responses import Response

ROOT = Path(__file__).resolve().parents[1]


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
    torch.set_num_threads(1)
    # A shell starts what runs in its background deaf to Ctrl-C, and so would be the commands that tests interrupt.
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser):
    what = "run no slow tests, and of the files of the others as many, quick ones first, as take so many seconds in all"
    parser.addoption("--seconds", type=float, metavar="SECONDS", help=what)


SECONDS = defaultdict(float)  # that the tests of a file took in this session, with their fixtures
TESTS = Counter()
KEPT = "posgap/seconds"  # in pytest's cache: seconds a test, by file, from the last session that ran any of them
UNKNOWN = 0.3  # seconds a test of a file that was never run here


def pytest_collection_modifyitems(config, items):
    """Files with slow tests come first, so that processes that share the files end together; where time is limited,
    quick files."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    if config.option.seconds is None:
        items.sort(key=lambda item: item.path not in slow)
        return
    kept = config.cache.get(KEPT, {})
    means = {item.path: kept.get(item.path.name, UNKNOWN) for item in items}
    quick = sorted((item for item in items if not item.get_closest_marker("slow")), key=lambda item: means[item.path])
    taken = accumulate(means[item.path] for item in quick)
    files = {item.path for item, seconds in zip(quick, taken) if seconds <= config.option.seconds}
    chosen = [item for item in quick if item.path in files]
    config.hook.pytest_deselected(items=set(items).difference(chosen))
    items[:] = chosen


def pytest_collection_finish():
    """The collector of garbage need not look again and again at what libraries have made by now, nor as often as it
    does: that was a tenth of the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 100)


def pytest_runtest_logreport(report):
    file = Path(report.location[0]).name
    SECONDS[file] += report.duration
    TESTS[file] += report.when == "call"


def pytest_sessionfinish(session):
    config = session.config
    if not hasattr(config, "workerinput") and hasattr(config, "cache"):  # the process that hears of all tests
        means = {file: round(SECONDS[file] / number, 3) for file, number in TESTS.items() if number}
        config.cache.set(KEPT, config.cache.get(KEPT, {}) | means)


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
def own_tracking(tmp_path, empty_store, monkeypatch):
    """Each test has an MLflow database and a cache of its own and belongs to no other run."""
    for name in ("MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_NAME", "POSGAP_PARENT_RUN_ID", "RANK"):
        monkeypatch.delenv(name, raising=False)
    beside = tmp_path.with_name(f"{tmp_path.name}-mlflow")
    beside.mkdir()
    shutil.copy(empty_store, beside / "mlflow.db")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{beside}/mlflow.db")
    monkeypatch.setenv("POSGAP_CACHE", f"{beside}/cache")


@pytest.fixture
def registers(tmp_path) -> Callable[[Path], str]:
    """Registers a model's folder as `tiny`, with the tag that promotion gives it, and makes it the champion, without a
    gate; returns its version."""
    import mlflow
    from mlflow.models import Model

    from posgap.foundation.files import digest
    from posgap.tracking import flavor
    from posgap.tracking.champions import CHAMPION
    from posgap.tracking.registry import DIGEST

    client = mlflow.MlflowClient()
    experiment = client.create_experiment("registered", (tmp_path / "artifacts").as_uri())

    def register(folder: Path) -> str:
        with mlflow.start_run(experiment_id=experiment):
            logged = Model.log(artifact_path=None, name="model", flavor=flavor, flavor_name=flavor.NAME, folder=folder)
        version = mlflow.register_model(logged.model_uri, "tiny", tags={DIGEST: digest(folder)}).version
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


def public_file(name: str) -> Path:
    """A file of the public data folder; skips where it is missing, or fails where it must be there."""
    folder = Path(os.environ.get("POSGAP_PUBLIC_DATA", ROOT.parent / "shared" / "data"))
    file = folder / name
    if not file.is_file():
        reason = f"{file} is missing: set POSGAP_PUBLIC_DATA to the folder with the public data files"
        (pytest.fail if os.environ.get("POSGAP_REQUIRE_PUBLIC_DATA") == "1" else pytest.skip)(reason)
    return file


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
    from posgap.storage.client import client

    calls, events = Calls(), client().meta.events
    events.register("before-parameter-build.s3", calls.named)
    events.register("before-call.s3", calls.seen)
    yield calls
    events.unregister("before-parameter-build.s3", calls.named)
    events.unregister("before-call.s3", calls.seen)


def but_for_seconds(file: Path) -> bytes:
    """What a file holds, without the seconds that a sweep took and the moment when a gate judged."""
    return re.sub(rb'"seconds": [\d.]+|[\d,]+ s of waiting|"judged_at": "[^"]+"', b"", file.read_bytes())


def kv_example(number: int = 0, n_records: int = 6) -> KVExample:
    """Keys of two hex digits and values of one, as the tiny tokenizer reads them."""
    records = [(f"{(17 * i + 5 * number) % 256:02x}", f"{(i + number) % 16:x}") for i in range(n_records)]
    key, value = records[number % n_records]
    return KVExample(id=f"kv-{number}", question=key, answers=[value], key=key, value=value, records=records)


def qa_example(number: int = 0, n_distractors: int = 3) -> Example:
    gold = Document(title="Nobel Prize", text=f"The first prize went to Wilhelm Röntgen, number {number}.")
    others = [Document(title=f"Other {i}", text=f"Nothing to see in {i}.") for i in range(n_distractors)]
    return Example(
        id=f"qa-{number}", question="Who got it?", answers=["Wilhelm Röntgen"], gold=[gold], distractors=others
    )


def answered(lengths=(2, 3, 1, 2)) -> list[Pair]:
    """Examples with made-up responses of so many tokens, as if given with the gold document first of five."""
    return [
        Pair(
            kv_example(i),
            Response(
                id=f"kv-{i}",
                content=content(kv_example(i)),
                placement=[1],
                n_docs=5,
                response="",
                token_ids=[25 + i + t for t in range(length - 1)] + [2],
                correct=True,
            ),
        )
        for i, length in enumerate(lengths)
    ]


@pytest.fixture
def pairs() -> list[Pair]:
    return answered()


@pytest.fixture
def collate(pairs, tokenizer) -> Collator:
    return Collator(pairs, PromptBuilder(TASKS["kv"], tokenizer, 512, 4))


@pytest.fixture(scope="session")
def tokenizer():
    return tiny_model.tokenizer()


@pytest.fixture
def model():
    """The tiny architecture before training, in float64 so that comparisons can be sharp."""
    return tiny_model.untrained(0).double().eval()


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory) -> Path:
    """An untrained tiny model on disk."""
    folder = tmp_path_factory.mktemp("models") / "untrained"
    save_model(tiny_model.untrained(0), tiny_model.tokenizer(), folder)
    return folder


@pytest.fixture(scope="session")
def values_folder(tmp_path_factory, tokenizer) -> Path:
    """An untrained tiny model that answers with value digits, though hardly ever the right one."""
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
