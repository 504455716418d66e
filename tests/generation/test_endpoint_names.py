"""How an endpoint is named: alike wherever a model is."""

import pytest
from endpoint import Endpoint, served
from examples import kv_example

import posgap
from posgap.cli.main import main
from posgap.data.reading import write_examples
from posgap.foundation.errors import BadOption, PosgapError
from posgap.generation.endpoint_names import is_endpoint
from posgap.options.check import CheckConfig
from posgap.options.mitigate import MitigateConfig
from posgap.options.sweep import SweepConfig
from posgap.options.teacher import TeacherConfig

ADDRESS = "http://localhost:8000/v1"
PATHS = {"examples": "e.jsonl", "out": "out"}


@pytest.fixture
def endpoint():
    with served(Endpoint()) as endpoint:
        yield endpoint


@pytest.mark.parametrize("config", [SweepConfig, CheckConfig, MitigateConfig])
@pytest.mark.parametrize(
    "given",
    [
        {"model": "m", "base_url": ADDRESS},
        {"model": f"{ADDRESS}#m"},
        {"model": "m", "base_url": ADDRESS, "backend": "auto"},  # as MLproject passes the default
        {"model": f"{ADDRESS}#m", "base_url": "", "backend": ""},
    ],
)
def test_an_address_implies_the_backend(config, given):
    parsed = config(**PATHS, **given)
    assert (parsed.model, parsed.base_url, parsed.backend) == ("m", ADDRESS, "openai")
    assert parsed.is_served("model")


def test_a_model_that_is_no_address_is_asked_here():
    assert SweepConfig(**PATHS, model="m").backend == "auto"
    assert SweepConfig(**PATHS, model="m", backend="vllm").backend == "vllm"


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        (ADDRESS, True), ("https://host/v1?api-version=1#m", True), ("owner/model", False), ("s3://b/model", False),
        (None, False),
    ],
)  # fmt: skip
def test_an_address_is_an_endpoint(text, is_one):
    assert is_endpoint(text) == is_one


def test_an_endpoint_says_which_model_it_serves(endpoint):
    endpoint.models = ["served"]
    parsed = SweepConfig(**PATHS, model=endpoint.url)
    assert (parsed.model, parsed.base_url, parsed.backend) == ("served", endpoint.url, "openai")


@pytest.mark.parametrize(
    ("models", "complaint"),
    [
        (["a", "b"], r"^--model: http://\S+/v1 .* 2 .*\(a, b\).* http://\S+/v1#NAME$"),
        (list("abcdefg"), r" 7 .*\(a, b, c, d, e, \.\.\.\).*#NAME$"),
        ([], r"^--model: [^(]+#NAME$"),
        (None, r"^--model: [^(]+#NAME$"),
        (401, " 401, .* OPENAI_API_KEY$"),
    ],
)
def test_of_several_models_one_must_be_named(endpoint, models, complaint):
    endpoint.models = models
    with pytest.raises(PosgapError, match=complaint):
        SweepConfig(**PATHS, model=endpoint.url)


@pytest.mark.parametrize("address", ["localhost:8765/v1", "10.0.0.1:80#m", "gpu-box:8000"])
def test_an_address_without_http_is_told_so(address):
    with pytest.raises(BadOption, match=f"^--model: {address}: .*http://"):
        SweepConfig(**PATHS, model=address)
    assert SweepConfig(**PATHS, model="llama3:70b", base_url=ADDRESS).model == "llama3:70b"


@pytest.mark.parametrize("file", [False, True])
def test_the_address_alone_is_enough_wherever_it_stands(file, endpoint, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    endpoint.models = ["served"]
    assert SweepConfig(**PATHS, base_url=endpoint.url).model == "served"
    write_examples(tmp_path / "e.jsonl", [kv_example(number, 3) for number in range(2)])
    (tmp_path / "options.yaml").write_text(f"sweep:\n  base-url: {endpoint.url}\n")
    words = ["--config", "options.yaml"] if file else ["--base-url", endpoint.url]
    with pytest.raises(SystemExit, match="0"):
        main(["sweep", *words, "--examples", "e.jsonl", "--n-docs", "3", "--json"])
    assert '"model": "served"' in capsys.readouterr().out and endpoint.seen.total() == 6


def test_an_endpoint_that_is_not_there_is_named():
    with pytest.raises(PosgapError, match="^http://127.0.0.1:1/v1: "):
        SweepConfig(**PATHS, model="http://127.0.0.1:1/v1")


def test_a_key_that_is_set_and_refused_is_said_to_be_so(endpoint, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "not-the-right-one")
    endpoint.models, endpoint.misbehave = 401, lambda text, times: (401, {}, "no")
    with pytest.raises(PosgapError, match="401, .* OPENAI_API_KEY ."):
        SweepConfig(**PATHS, model=endpoint.url)
    with pytest.raises(PosgapError, match="401 Unauthorized: no; .* OPENAI_API_KEY ."):
        posgap.sweep(endpoint.url, examples=2, name="m", n_docs=3, quiet=True)
    with pytest.raises(PosgapError, match="401 Unauthorized: no; .*OPENAI_API_KEY$"):
        posgap.sweep(endpoint.url, examples=2, name="m", n_docs=3, quiet=True, header=["Authorization=other"])


def test_the_key_is_sent_and_never_shown(endpoint, monkeypatch):
    monkeypatch.setenv("GATE_KEY", "a-very-secret-key")
    endpoint.models = ["served"]
    header = ["api-key=$GATE_KEY"]
    assert SweepConfig(**PATHS, model=endpoint.url, header=header).model == "served"
    assert endpoint.headers[-1]["api-key"] == "a-very-secret-key"


def test_two_addresses_are_one_too_many():
    with pytest.raises(BadOption, match="^--model and --base-url "):
        SweepConfig(**PATHS, model=f"{ADDRESS}#m", base_url=ADDRESS)


def test_a_backend_of_this_machine_takes_no_address():
    with pytest.raises(ValueError, match="`base_url`"):
        SweepConfig(**PATHS, model="m", base_url=ADDRESS, backend="vllm")


def test_a_verb_that_asks_no_endpoint_says_so():
    with pytest.raises(ValueError, match="\nmodel\n"):
        TeacherConfig(**PATHS, model=f"{ADDRESS}#m")


def test_python_names_an_endpoint_alike(endpoint):
    asked = {"examples": 2, "n_docs": 3, "positions": [1], "quiet": True}
    for named in ({"model": endpoint.url, "name": "m"}, {"model": f"{endpoint.url}#m"}):
        assert posgap.sweep(**named, **asked).figures.model == "m"
