"""A small local KFP server: the v2beta1 API for pipelines, experiments, runs and recurring runs.

It refuses what the real one would: payloads that are not as the API's models say, pipelines that are no pipeline specs,
cron it cannot parse.
"""

import email
import json
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from urllib.parse import parse_qsl, urlsplit

import kfp_server_api
import yaml
from google.protobuf import json_format
from kfp.pipeline_spec.pipeline_spec_pb2 import PipelineSpec, PlatformSpec

KINDS = {"str": str, "bool": bool, "int": int, "object": dict}
VALUES = {
    "STRING": str,
    "NUMBER_INTEGER": (int, float),
    "NUMBER_DOUBLE": (int, float),
    "BOOLEAN": bool,
    "LIST": list,
    "STRUCT": dict,
}
CRON_BOUNDS = [(0, 59), (0, 59), (0, 23), (1, 31), (1, 12), (0, 6)]


class Bad(Exception):
    """What the server refuses, with its HTTP status."""

    def __init__(self, complaint: str, status: int = 400):
        super().__init__(complaint)
        self.status = status


def conforms(value: object, kind: str, where: str = "body") -> None:
    """Raises `Bad` where a JSON value is not what the API's models say."""
    if match := re.fullmatch(r"list\[(.+)\]", kind):
        for number, each in enumerate(value):
            conforms(each, match[1], f"{where}[{number}]")
    elif match := re.fullmatch(r"dict\(str, (.+)\)", kind):
        if not isinstance(value, dict):
            raise Bad(f"{where}: {value!r} is no object")
    elif kind in KINDS:
        if not isinstance(value, KINDS[kind]):
            raise Bad(f"{where}: {value!r} is no {kind}")
    elif allowed := getattr(getattr(kfp_server_api, kind), "allowable_values", None):
        if value not in allowed:
            raise Bad(f"{where}: {value!r} is none of {allowed}")
    else:
        model = getattr(kfp_server_api, kind)
        types = {model.attribute_map[name]: of for name, of in model.openapi_types.items()}
        for key, inner in value.items():
            if key not in types:
                raise Bad(f"{where}.{key}: {kind} has no such field")
            conforms(inner, types[key], f"{where}.{key}")


def runnable(body: dict, versions: dict) -> None:
    """Raises `Bad` unless the body has a pipeline spec, or names a version's, and arguments that it takes."""
    source = body.get("pipeline_spec")
    if reference := body.get("pipeline_version_reference"):
        held = versions.get(reference["pipeline_version_id"], {})
        if source or held.get("pipeline_id") != reference["pipeline_id"]:
            raise Bad(f"pipeline version {reference} not found, or beside a pipeline spec", 404)
        source = held["pipeline_spec"]
    if not source:
        raise Bad("a pipeline source is required")
    both = source if "pipeline_spec" in source else {"pipeline_spec": source}
    try:
        spec = json_format.ParseDict(both["pipeline_spec"], PipelineSpec())
        json_format.ParseDict(both.get("platform_spec", {}), PlatformSpec())
    except json_format.ParseError as error:
        raise Bad(f"invalid pipeline spec: {error}") from None
    parameters = spec.root.input_definitions.parameters
    values = body.get("runtime_config", {}).get("parameters", {})
    for name, value in values.items():
        if name not in parameters:
            raise Bad(f"unknown parameter {name}")
        kind = json_format.MessageToDict(parameters[name])["parameterType"]
        if not isinstance(value, VALUES[kind]) or (kind.startswith("NUMBER") and isinstance(value, bool)):
            raise Bad(f"parameter {name}: {value!r} is no {kind}")
    for name, parameter in parameters.items():
        if name not in values and not parameter.is_optional and not parameter.HasField("default_value"):
            raise Bad(f"parameter {name} is required")


def cron_parses(text: str) -> None:
    """Raises `Bad` for what robfig/cron 1.2, KFP's parser, does not take. It takes five fields, as second to month."""
    fields = text.split()
    if not 5 <= len(fields) <= 6:
        raise Bad(f"Schedule cron is not a supported format: Expected 5 to 6 fields, found {len(fields)}: {text}")
    for field, (low, high) in zip(fields, CRON_BOUNDS):
        for number in re.findall(r"(?<![/0-9])\d+", field):
            if not low <= int(number) <= high:
                raise Bad(f"Schedule cron is not a supported format: {number} is not in {low}..{high}")


class Server:
    """What the server holds, what it saw, and how it answers.

    `misbehave(method, path, times)` is called with how often that was asked before; it returns None for a proper
    answer, seconds to hang, or (status, headers, body); with a fourth item, true, it does as asked before that.
    `states` are a run's states from one look to the next, `tasks` its tasks as reported, and `workflows` Argo's record
    of it, from one look to the next.
    """

    def __init__(self, token: str = "", misbehave: Callable = lambda method, path, times: None):
        self.token, self.misbehave = token, misbehave
        self.states, self.tasks, self.page_size = ["SUCCEEDED"], [], 100
        self.workflows: list[dict] = []
        self.pipelines: dict[str, dict] = {}
        self.versions: dict[str, dict] = {}
        self.experiments: dict[str, dict] = {}
        self.runs: dict[str, dict] = {}
        self.schedules: dict[str, dict] = {}
        self.deleted: list[tuple[str, str]] = []
        self.seen: Counter[tuple[str, str]] = Counter()
        self.tokens: list[str] = []
        self.ids, self.lock, self.url = count(1), threading.Lock(), ""

    def reply(self, method: str, target: str, headers: dict, body: dict | None) -> tuple[int, dict, str]:
        address = urlsplit(target)
        with self.lock:
            times = self.seen[method, address.path]
            self.seen[method, address.path] += 1
            wrong = self.misbehave(method, address.path, times)
            self.tokens.append(headers.get("authorization", ""))
            if isinstance(wrong, tuple) and len(wrong) == 3:
                return wrong
            try:
                if self.token and headers.get("authorization") != f"Bearer {self.token}":
                    raise Bad("Unauthenticated: Request header error: there is no user identity header.", 401)
                done = 200, {}, json.dumps(self.answer(method, address.path, dict(parse_qsl(address.query)), body))
            except Bad as error:
                detail = {"@type": "type.googleapis.com/google.rpc.Status", "code": 3, "message": str(error)}
                complaint = {"code": 3, "message": f"Failed to do it: {error}", "details": [detail]}
                done = error.status, {}, json.dumps(complaint)
        if isinstance(wrong, tuple):
            return wrong[:3]
        time.sleep(wrong or 0)
        return done

    def answer(self, method: str, path: str, query: dict, body: dict | None) -> dict:
        _, version, kind, *rest = path.strip("/").split("/")
        kinds = {"experiments": self.experiments, "runs": self.runs, "recurringruns": self.schedules}
        kinds["pipelines"] = self.pipelines
        if version == "v1beta1" and kind == "runs" and self.workflows:
            workflow = self.workflows[0]
            self.workflows = self.workflows[1:] or self.workflows
            return {"run": {"id": rest[0]}, "pipeline_runtime": {"workflow_manifest": json.dumps(workflow)}}
        if version != "v2beta1" or kind not in kinds:
            raise Bad("Not Found", 404)
        held = kinds[kind]
        if kind == "pipelines" and rest == ["upload_version"]:
            return self.upload_version(query, body)
        if kind == "pipelines" and rest[1:2] == ["versions"]:
            return self.version(rest[0], rest[2:], query)
        if not rest:
            return getattr(self, f"create_{kind}")(body) if method == "POST" else self.listed(kind, held, query)
        key, _, verb = rest[0].partition(":")
        if key not in held:
            raise Bad(f"{kind} {key} not found", 404)
        if method == "DELETE":
            return self.delete(key, query)
        if verb:
            held[key] |= {"status": f"{verb.upper()}D", "mode": verb.upper()}
            return {}
        if kind == "runs":
            held[key]["state"] = self.states[0]
            self.states = self.states[1:] or self.states
        return held[key]

    def new(self, held: dict, id_field: str, body: dict) -> dict:
        number = next(self.ids)
        key = f"{number:08d}-0000-4000-8000-000000000000"
        held[key] = body | {id_field: key, "created_at": f"2026-11-21T12:00:{number % 60:02d}Z"}
        return held[key]

    def create_experiments(self, body: dict) -> dict:
        conforms(body, "V2beta1Experiment")
        if any(experiment["display_name"] == body["display_name"] for experiment in self.experiments.values()):
            raise Bad(f"experiment {body['display_name']} already exists", 409)
        return self.new(self.experiments, "experiment_id", body)

    def create_pipelines(self, body: dict) -> dict:
        conforms(body, "V2beta1Pipeline")
        if any(pipeline["name"] == body["name"] for pipeline in self.pipelines.values()):
            raise Bad(f"pipeline {body['name']} already exists", 409)
        return self.new(self.pipelines, "pipeline_id", body)

    def upload_version(self, query: dict, body: dict) -> dict:
        pipeline, name = query.get("pipelineid"), query["name"]
        if pipeline not in self.pipelines:
            raise Bad(f"pipeline {pipeline} not found", 404)
        if any((v["pipeline_id"], v["name"]) == (pipeline, name) for v in self.versions.values()):
            raise Bad(f"pipeline version {name} already exists", 409)
        spec, *platform = yaml.safe_load_all(body["uploadfile"])
        source = {"pipeline_spec": spec, "platform_spec": platform[0]} if platform else spec
        version = {"pipeline_id": pipeline, "name": name, "display_name": name, "pipeline_spec": source}
        version |= {"description": query.get("description", "")}
        conforms(version, "V2beta1PipelineVersion")
        return self.new(self.versions, "pipeline_version_id", version)

    def version(self, pipeline: str, rest: list[str], query: dict) -> dict:
        held = {key: version for key, version in self.versions.items() if version["pipeline_id"] == pipeline}
        if rest and rest[0] not in held:
            raise Bad(f"pipeline version {rest[0]} not found", 404)
        return held[rest[0]] if rest else self.listed("pipeline_versions", held, query)

    def create_runs(self, body: dict) -> dict:
        conforms(body, "V2beta1Run")
        self.belongs(body)
        runnable(body, self.versions)
        return self.new(self.runs, "run_id", body | {"state": "PENDING"})

    def create_recurringruns(self, body: dict) -> dict:
        conforms(body, "V2beta1RecurringRun")
        self.belongs(body)
        runnable(body, self.versions)
        if body.get("mode") not in ("ENABLE", "DISABLE"):
            raise Bad("mode is required")
        if not 1 <= int(body.get("max_concurrency", 0)) <= 10:
            raise Bad("Max concurrency of a recurring run must be at least 1 and at most 10")
        cron_parses(body["trigger"]["cron_schedule"]["cron"])
        return self.new(self.schedules, "recurring_run_id", body | {"status": f"{body['mode']}D"})

    def belongs(self, body: dict) -> None:
        if not body.get("display_name"):
            raise Bad("name cannot be empty")
        if body.get("experiment_id") not in self.experiments:
            raise Bad(f"experiment {body.get('experiment_id')} not found", 404)

    def listed(self, kind: str, held: dict, query: dict) -> dict:
        listed = list(reversed(held.values()))
        if "experiment_id" in query:
            listed = [item for item in listed if item["experiment_id"] == query["experiment_id"]]
        for predicate in json.loads(query.get("filter", "{}")).get("predicates", []):
            assert predicate["operation"] == 1
            listed = [item for item in listed if item.get(predicate["key"]) == predicate["stringValue"]]
        start = int(query.get("page_token") or 0)
        end = start + min(int(query["page_size"]), self.page_size)
        more = {"next_page_token": str(end)} if end < len(listed) else {}
        return {
            "recurringRuns" if kind == "recurringruns" else kind: listed[start:end],
            "total_size": len(listed),
        } | more

    def delete(self, key: str, query: dict) -> dict:
        policy = query.get("propagation_policy", "")
        self.deleted.append((self.schedules.pop(key)["display_name"], policy))
        for run in self.runs.values():
            # A server before 2.16 knows no policy, and Kubernetes removes what the schedule owns.
            if run.get("recurring_run_id") == key and run["state"] == "RUNNING":
                run["state"] = "CANCELED"
        return {}


@contextmanager
def served(server: Server) -> Iterator[Server]:
    """Serves on a free port of this machine, at `server.url`."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _any(self):
            length = int(self.headers.get("Content-Length") or 0)
            body = self.rfile.read(length) if length else b"null"
            kind = self.headers.get("Content-Type") or ""
            if kind.startswith("multipart/form-data"):
                parts = email.message_from_bytes(f"Content-Type: {kind}\r\n\r\n".encode() + body).get_payload()
                named = {part.get_param("name", header="Content-Disposition"): part for part in parts}
                body = {name: part.get_payload(decode=True).decode() for name, part in named.items()}
            else:
                body = json.loads(body)
            lower = {name.lower(): value for name, value in self.headers.items()}
            status, headers, text = server.reply(self.command, self.path, lower, body)
            content = text.encode()
            try:
                self.send_response(status)
                for name, value in {"Content-Length": str(len(content)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True  # the client did not wait

        do_GET = do_POST = do_DELETE = _any

        def log_message(self, *_):
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    threading.Thread(target=http.serve_forever, daemon=True).start()
    server.url = f"http://127.0.0.1:{http.server_port}"
    try:
        yield server
    finally:
        http.shutdown()
        http.server_close()
