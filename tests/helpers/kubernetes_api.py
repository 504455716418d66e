"""A Kubernetes API server on loopback that knows TrainJobs: it checks what it is given against the schema of the
custom resource, plays the life of a job, and keeps a record."""

import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import yaml
from jsonschema import Draft202012Validator

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = yaml.safe_load((ROOT / "tests" / "schemas" / "trainjob.yaml").read_text())
RUNTIME = yaml.safe_load((ROOT / "infra" / "kubernetes" / "base" / "cluster" / "runtime.yaml").read_text())
JOBS = re.compile(r"/apis/trainer\.kubeflow\.org/v1alpha1/namespaces/posgap/trainjobs(?:/([^/]+))?$")
LOG = re.compile(r"/api/v1/namespaces/posgap/pods/([^/]+)/log$")


@dataclass(frozen=True)
class Scene:
    """How things stand from `after` seconds on: the phases of the pods, the condition of the job, what each pod has
    printed by then, how its container ended (a `terminated` state), and why Kueue does not admit the job."""

    after: float
    pods: tuple[str, ...] = ()
    condition: str = ""
    printed: tuple[str, ...] = ()
    ended: tuple[dict, ...] = ()
    queue: str = ""


@dataclass
class Cluster:
    """What the server holds, and how it behaves. A job plays the `scenes` that stood there when it was created."""

    scenes: list[Scene]
    token: str = "let-me-in"
    refuse: dict[tuple[str, str], list[tuple[int, str]]] = field(default_factory=dict)  # by method and end of path
    jobs: dict[str, dict] = field(default_factory=dict)
    born: dict[str, float] = field(default_factory=dict)
    plays: dict[str, list[Scene]] = field(default_factory=dict)
    created: list[dict] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    being_deleted: set[str] = field(default_factory=set)
    lingering: dict[str, int] = field(default_factory=dict)  # how often pods of a job that is gone are still listed
    url: str = ""

    def scene(self, name: str) -> Scene:
        age = time.monotonic() - self.born[name]
        return [scene for scene in self.plays[name] if scene.after <= age][-1]

    def add(self, manifest: dict) -> dict:
        name = manifest["metadata"]["name"]
        manifest["metadata"] |= {"namespace": "posgap", "creationTimestamp": "2026-11-21T08:00:00Z", "uid": name}
        self.jobs[name], self.born[name], self.plays[name] = manifest, time.monotonic(), list(self.scenes)
        return manifest

    def kubeconfig(self, folder: Path) -> Path:
        """A file for KUBECONFIG."""
        file = folder / "kubeconfig"
        context = {"name": "here", "context": {"cluster": "here", "user": "me", "namespace": "posgap"}}
        config = {
            "current-context": "here",
            "contexts": [context],
            "clusters": [{"name": "here", "cluster": {"server": self.url}}],
            "users": [{"name": "me", "user": {"token": self.token}}],
        }
        file.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "Config", **config}))
        return file


def faults(manifest: dict) -> list[str]:
    """What the schema of TrainJob finds wrong with a manifest."""
    complaints = [f"{key}: {manifest.get(key)}" for key in ("apiVersion", "kind") if manifest.get(key) != SCHEMA[key]]
    for part, schema in ((manifest["metadata"]["name"], SCHEMA["name"]), (manifest["spec"], SCHEMA["spec"])):
        complaints += [f"{list(e.path)}: {e.message}" for e in Draft202012Validator(schema).iter_errors(part)]
    return complaints


class _Handler(BaseHTTPRequestHandler):
    cluster: Cluster
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_):
        pass

    def do_GET(self):
        self._serve("GET")

    def do_POST(self):
        self._serve("POST")

    def do_DELETE(self):
        self._serve("DELETE")

    def _serve(self, method: str) -> None:
        size = int(self.headers.get("Content-Length", 0))
        body = json.loads(self.rfile.read(size)) if size else None
        url = urlsplit(self.path)
        if self.headers.get("Authorization") != f"Bearer {self.cluster.token}":
            return self._fail(401, "Unauthorized")
        for (refused, end), answers in self.cluster.refuse.items():
            if method == refused and url.path.endswith(end) and answers:
                return self._fail(*answers.pop(0))
        if match := JOBS.match(url.path):
            return self._job(method, match[1], body)
        if match := LOG.match(url.path):
            return self._log(match[1], "follow" in parse_qs(url.query))
        if url.path.endswith("/pods"):
            return self._send(self._pods(parse_qs(url.query)["labelSelector"][0]))
        if url.path.endswith("/clustertrainingruntimes/posgap-deepspeed"):
            return self._send(RUNTIME)
        if url.path.endswith("/workloads"):
            return self._send({"kind": "WorkloadList", "apiVersion": "v1", "items": self._workloads()})
        if url.path.endswith("/events"):
            return self._send({"kind": "EventList", "apiVersion": "v1", "metadata": {}, "items": self._events()})
        self._fail(404, f"{url.path} not found")

    def _job(self, method: str, name: str | None, body: dict | None) -> None:
        if method == "POST":
            self.cluster.created.append(body)
            if wrong := faults(body):
                return self._fail(422, f"TrainJob is invalid: {wrong}")
            if body["metadata"]["name"] in self.cluster.jobs:
                return self._fail(409, "already exists")
            return self._send(self.cluster.add(body), 201)
        if name not in self.cluster.jobs:
            return self._fail(404, f'trainjobs "{name}" not found')
        if method == "DELETE":
            self.cluster.deleted.append(name)
            del self.cluster.jobs[name]
            return self._send({"kind": "Status", "apiVersion": "v1", "status": "Success"})
        condition = self.cluster.scene(name).condition
        stands = {"status": "True", "reason": "R", "message": "", "lastTransitionTime": "2026-11-21T08:00:00Z"}
        status = {"status": {"conditions": [{"type": condition, **stands}]}} if condition else {}
        job = self.cluster.jobs[name]
        if name in self.cluster.being_deleted:
            job = job | {"metadata": job["metadata"] | {"deletionTimestamp": "2026-11-21T08:01:00Z"}}
        self._send(job | status)

    def _pods(self, selector: str) -> dict:
        name = re.search(r"jobset-name=([^,]+)", selector)[1]
        pods = [
            {
                "metadata": {
                    "name": f"{name}-node-0-{index}-abcde",
                    "namespace": "posgap",
                    "creationTimestamp": "2026-11-21T08:00:00Z",
                    "labels": {
                        "jobset.sigs.k8s.io/replicatedjob-name": "node",
                        "batch.kubernetes.io/job-completion-index": str(index),
                    },
                },
                "spec": {
                    "containers": [
                        {
                            "name": "node",
                            "image": "posgap",
                            "resources": {"limits": {"memory": "64Gi", "nvidia.com/gpu": "4"}},
                        }
                    ]
                },
                "status": {"phase": phase} | self._containers(name, index),
            }
            for index, phase in enumerate(self._phases(name))
        ]
        return {"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": pods}

    def _phases(self, name: str) -> tuple[str, ...]:
        if name in self.cluster.jobs:
            return self.cluster.scene(name).pods
        left = self.cluster.lingering.get(name, 0)
        self.cluster.lingering[name] = left - 1
        return ("Running",) if left > 0 else ()

    def _containers(self, name: str, index: int) -> dict:
        ended = self.cluster.scene(name).ended if name in self.cluster.jobs else ()
        if index >= len(ended) or not ended[index]:
            return {}
        state = {"terminated": {"exitCode": 1} | ended[index]}
        container = {"name": "node", "image": "posgap", "imageID": "", "ready": False, "restartCount": 0}
        return {"containerStatuses": [container | {"state": state}]}

    def _workloads(self) -> list[dict]:
        found = []
        for name in self.cluster.jobs:
            words = self.cluster.scene(name).queue
            waits = {"type": "QuotaReserved", "status": "False", "message": words}
            conditions = [waits if words else {"type": "Admitted", "status": "True"}]
            owner = {"kind": "TrainJob", "name": name}
            found.append({"metadata": {"name": name, "ownerReferences": [owner]}, "status": {"conditions": conditions}})
        return found

    def _events(self) -> list[dict]:
        """One of each job, and one of an earlier job of its name."""
        return [
            {
                "metadata": {"name": f"{name}.{hour}", "namespace": "posgap"},
                "involvedObject": {"kind": "TrainJob", "name": name},
                "firstTimestamp": f"2026-11-21T{hour}:00:00Z",
                "reason": reason,
                "message": "no GPUs are left",
            }
            for name in self.cluster.jobs
            for hour, reason in (("08", "QuotaExceeded"), ("07", "OfBefore"))
        ]

    def _log(self, pod: str, follow: bool) -> None:
        name, index = re.match(r"(.*)-node-0-(\d+)-abcde", pod).groups()
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        sent = 0
        while name in self.cluster.jobs:
            scene = self.cluster.scene(name)
            lines = (scene.printed[int(index)] if int(index) < len(scene.printed) else "").splitlines(keepends=True)
            for line in lines[sent:]:
                self.wfile.write(f"{len(line.encode()):x}\r\n{line}\r\n".encode())
            self.wfile.flush()
            sent = len(lines)
            if not follow or scene.pods[int(index)] != "Running":
                break
            time.sleep(0.02)
        self.wfile.write(b"0\r\n\r\n")

    def _fail(self, code: int, message: str) -> None:
        self._send({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "code": code}, code)

    def _send(self, value: dict, code: int = 200) -> None:
        body = json.dumps(value).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def served(scenes: list[Scene]) -> Iterator[Cluster]:
    """A cluster that answers on loopback within the block."""
    cluster = Cluster(scenes)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"cluster": cluster}))
    server.daemon_threads = True
    cluster.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield cluster
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
