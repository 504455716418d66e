"""The client of endpoints: its clock, its connections, and what it says of addresses that nobody answers at."""

import asyncio
import datetime
import ssl
import time

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from endpoint import Endpoint, served

from posgap.foundation.errors import PosgapError
from posgap.generation import endpoint_address
from posgap.generation.endpoint_client import PausingLoop, proxy_for
from posgap.generation.endpoint_parameters import EndpointParameters
from posgap.generation.generator import Sampling, complete
from posgap.generation.openai import OpenAIGenerator
from posgap.tasks.prompts import Prompt


def make(url, **parameters):
    return OpenAIGenerator("m", EndpointParameters(base_url=url, **parameters))


def test_slow_reader_of_answers_costs_no_timeout():
    """The clock of a request stands still while nobody runs the event loop."""
    with served(Endpoint(str.upper)) as endpoint:
        generator = make(endpoint.url, concurrency=512, timeout=0.6)
        for number, _ in enumerate(generator.generate(([Prompt(f"p{i}")] for i in range(20)), Sampling(7))):
            if number == 1:  # others are under way
                time.sleep(0.7)
        assert set(endpoint.seen.values()) == {1} and len(endpoint.seen) == 20


def test_clock_of_a_loop_stands_still_between_runs():
    loop = PausingLoop()
    try:
        began = loop.run_until_complete(asyncio.sleep(0, loop.time()))
        time.sleep(0.1)
        assert loop.time() - began < 0.05
        loop.run_until_complete(asyncio.sleep(0.05))
        assert loop.time() - began > 0.04
    finally:
        loop.close()


def test_timeouts_lower_the_number_of_requests_until_all_are_answered(caplog):
    """A server with one slot, that takes four times the timeout for all requests at once."""
    with served(Endpoint(str.upper)) as endpoint:
        turn = endpoint.lock

        def one_by_one(text, times):
            with turn:
                time.sleep(0.05)

        endpoint.misbehave = one_by_one
        generator = make(endpoint.url, timeout=0.2)
        generator.window.size = 16.0  # as if the first answer had come at once
        texts = [f"p{i}" for i in range(24)]
        assert [c.text for c in complete(generator, [Prompt(text) for text in texts], Sampling(7))] == [
            text.upper() for text in texts
        ]
    assert generator.pace.refusals and generator.window.room <= 8
    assert caplog.text.count("raise --timeout") == 1


def test_connections_are_reused():
    with served(Endpoint(str.upper)) as endpoint:
        generator = make(endpoint.url)
        assert len(list(generator.generate(([Prompt(f"p{i}")] for i in range(60)), Sampling(7)))) == 60
    assert generator.pace.answers == 60 and generator.pace.per_second > 0
    assert 0 < generator.pace.median_wait <= generator.pace.p95_wait


@pytest.mark.parametrize(
    ("environment", "url", "proxy"),
    [
        ({}, "http://a.example/v1", None),
        ({"http_proxy": "http://p:1"}, "http://a.example/v1", "http://p:1"),
        ({"https_proxy": "p:1"}, "https://a.example/v1", "http://p:1"),
        ({"http_proxy": "http://p:1"}, "https://a.example/v1", None),
        ({"all_proxy": "socks5://p:1"}, "https://a.example/v1", "socks5://p:1"),
        ({"https_proxy": "http://p:1", "no_proxy": "a.example"}, "https://a.example:8443/v1", None),
    ],
)
def test_proxies_are_those_of_the_environment(environment, url, proxy, monkeypatch):
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert proxy_for(url) == proxy


def private_authority(folder):
    """A certificate for localhost and its key, signed by itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    (folder / "cert.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return folder / "cert.pem", folder / "key.pem"


def test_certificate_of_a_private_authority_is_trusted_if_the_environment_names_it(tmp_path, monkeypatch):
    certificate, key = private_authority(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with served(Endpoint(str.upper), tls=context) as endpoint:
        endpoint_address.tls.cache_clear()
        with pytest.raises(PosgapError, match="SSL_CERT_FILE"):
            list(complete(make(endpoint.url), [Prompt("a")], Sampling(7)))
        assert not endpoint.seen
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        endpoint_address.tls.cache_clear()
        (answer,) = complete(make(endpoint.url), [Prompt("a")], Sampling(7))
        assert answer.text == "A"
    endpoint_address.tls.cache_clear()
