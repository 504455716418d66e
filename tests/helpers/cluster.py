"""A node of Kubernetes on this machine, with posgap's overlay `local`, as root: `make cluster`.

`python tests/helpers/cluster.py cpu mlflow` keeps one up with these images until Ctrl-C, and says where its kubeconfig
is; tests then use that one.
"""

import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import api_server
import container_images
import pytest
import torch
import training_operators
import yaml
from api_server import GO, PROGRAM, ApiServer, compile_go, module_folder
from container_engine import run
from manifests import containers, overlay, pod_templates
from places import ROOT

from posgap.components.making import CPU, SERVE, TRAIN, image

ON_A_NODE = os.environ.get("POSGAP_NODE") == "1"
FOLDER = ROOT / "build" / "cluster" / "node"
SOCKET, WITHIN = FOLDER / "containerd.sock", FOLDER / "within.json"
# By module and package; each is built by its own go.mod.
PROGRAMS = {
    "coredns": ("github.com/coredns/coredns@v1.14.1", "."),
    "kube-router": ("github.com/cloudnativelabs/kube-router/v2@v2.1.0", "./cmd/kube-router"),
    "weed": ("github.com/seaweedfs/seaweedfs@v0.0.0-20261109003541-7506e5f91cd6", "./weed"),
}
PAUSE = "localhost/posgap-test-pause:latest"
TOOLS = ("buildah", "containerd", "conntrack", "debootstrap", "ip", "ipset", "iptables", "kubectl", "nsenter", "runc")
NODE, CGROUP, LINK = "posgap", "posgap-cluster", "posgap0"
LOCK = Path("/run/posgap-cluster.lock")
VOLUMES = [f"volume-{number}" for number in range(4)]
HOST, ADDRESS, PODS = "10.90.0.2", "10.90.0.1", "10.244.0.0/24"
# Mounts, processes and networks of a node lie in namespaces that end with their first process. The settings that the
# kubelet changes are the whole machine's, so it finds copies.
NAMESPACES = r"""
for setting in vm/{overcommit_memory,panic_on_oom} kernel/{panic,panic_on_oops,keys/root_maxkeys,keys/root_maxbytes}; do
    cp /proc/sys/$setting "$1/${setting//\//.}" && mount --bind "$1/${setting//\//.}" /proc/sys/$setting
done
mount --bind "$1/var" /var && mount -t tmpfs run /run
ip link set lo up
echo 1 > /proc/sys/net/ipv4/ip_forward
sleep infinity &
echo ready
wait
"""
CONTAINERD = f"""
version = 2
root = "{FOLDER}/containerd"
[grpc]
address = "{SOCKET}"
[plugins."io.containerd.internal.v1.opt"]
path = "{FOLDER}/opt"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{PAUSE}"
restrict_oom_score_adj = true  # without CAP_SYS_RESOURCE: "can't get final child's PID from pipe"
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "/usr/lib/cni"
conf_dir = "{FOLDER}/cni"
"""
BRIDGE = {
    "cniVersion": "1.0.0",
    "name": "pods",
    "plugins": [
        {
            "type": "bridge",
            "bridge": "cni0",
            "isGateway": True,
            "hairpinMode": True,
            "ipam": {"type": "host-local", "ranges": [[{"subnet": PODS}]], "routes": [{"dst": "0.0.0.0/0"}]},
        },
        {"type": "portmap", "capabilities": {"portMappings": True}},
    ],
}
KUBELET = {
    "apiVersion": "kubelet.config.k8s.io/v1beta1",
    "kind": "KubeletConfiguration",
    "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
    "authorization": {"mode": "AlwaysAllow"},
    "cgroupDriver": "cgroupfs",
    "cgroupRoot": f"/{CGROUP}",
    "clusterDNS": ["10.96.0.10"],
    "clusterDomain": "cluster.local",
    "containerRuntimeEndpoint": f"unix://{SOCKET}",
    "evictionHard": {"memory.available": "100Mi"},
    "failCgroupV1": False,
    "imageGCHighThresholdPercent": 100,  # nothing could bring an image back
    "localStorageCapacityIsolation": False,  # it finds no file system behind the root device of a small machine
    "resolvConf": "",
}


def build(kinds: Sequence[str]) -> None:
    """Makes what a node runs: Kubernetes, and images of posgap and others."""
    api_server.build()
    training_operators.build()
    for program, (module, package) in PROGRAMS.items():
        compile_go(module_folder(module), package, PROGRAM.parent / program)
    weed = module_folder(PROGRAMS["weed"][0]) / "docker"
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        context = Path(folder)
        (context / "containers.conf").write_text(container_images.CONFIG)
        patch.setenv("CONTAINERS_CONF", f"{context}/containers.conf")
        container_images.build_images(context, "buildah", kinds, ["postgres"])
        for file in (weed / "entrypoint.sh", weed / "filer.toml", PROGRAM.parent / "weed", PROGRAM.parent / "coredns"):
            shutil.copy(file, context)
        shutil.copy(ROOT / "constraints.txt", context)
        shutil.copytree(Path(torch.__file__).parent / "include", context / "include")
        flags = ["--layers", "--network=host", f"--build-arg=CPU={image(CPU)}", *container_images.pip_flags(context)]
        for name in ("pause", "seaweedfs", "train"):
            file = container_images.STAND_INS / f"{name}.Dockerfile"
            run("buildah", "build", *flags, "--file", file, f"--tag=localhost/posgap-test-{name}", context)


@contextmanager
def running(kinds: Sequence[str]) -> Iterator[ApiServer]:
    """A cluster of one node that is ready, with these images of posgap; all of it ends with the block."""
    if missing := [tool for tool in TOOLS if not shutil.which(tool)]:
        raise RuntimeError(f"missing: {', '.join(missing)}; see infra/ci/README.md")
    build(kinds)
    with ExitStack() as stack:
        try:
            fcntl.flock(stack.enter_context(LOCK.open("w")), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RuntimeError("another node is up on this machine") from None
        _remove()
        stack.callback(_remove)
        for path in (*_cgroups(), *(FOLDER / name for name in ("cni", "var/lib", "var/log", *VOLUMES))):
            path.mkdir(parents=True)
        (FOLDER / "var/run").symlink_to("/run")
        (FOLDER / "containerd.toml").write_text(CONTAINERD)
        (FOLDER / "cni/pods.conflist").write_text(json.dumps(BRIDGE))
        (FOLDER / "kubelet.yaml").write_text(yaml.safe_dump(KUBELET))
        within = stack.enter_context(_namespaces())
        WITHIN.write_text(json.dumps(within))
        accounts = {"node": f"system:node:{NODE},2,system:nodes"}
        server = stack.enter_context(api_server.running(FOLDER, ADDRESS, 6443, within, accounts))
        admin = f"--kubeconfig={server.kubeconfig}"
        alone = ["--leader-elect=false"]  # or they end when a busy machine renews their lease late
        server.start("containerd", f"--config={FOLDER}/containerd.toml")
        server.start(
            PROGRAM, "kube-controller-manager", admin, *alone, f"--root-ca-file={FOLDER}/certificates/apiserver.crt",
            f"--service-account-private-key-file={FOLDER}/accounts.key",
            "--allocate-node-cidrs", f"--cluster-cidr={PODS}",
        )  # fmt: skip
        server.start(PROGRAM, "kube-scheduler", admin, *alone)
        server.wait_for(SOCKET.exists)
        import_image(PAUSE)
        server.start(
            PROGRAM, "kubelet", f"--kubeconfig={FOLDER}/node.conf", f"--config={FOLDER}/kubelet.yaml",
            f"--hostname-override={NODE}", f"--node-ip={ADDRESS}",
        )  # fmt: skip
        server.start(
            PROGRAM, "kube-proxy", admin, f"--hostname-override={NODE}", f"--cluster-cidr={PODS}",
            # These settings are the whole machine's.
            "--conntrack-max-per-core=0", "--conntrack-tcp-timeout-established=0s",
            "--conntrack-tcp-timeout-close-wait=0s",
        )  # fmt: skip
        server.wait_for(lambda: not server.call("get", "node", NODE).returncode)
        # No GPU is there: what asks for one gets the CPUs.
        amounts = {"ephemeral-storage": "500Gi", "nvidia.com/gpu": "4"}
        status = {key: amounts for key in ("capacity", "allocatable")}
        server.kubectl("patch", "node", NODE, "--subresource=status", "--patch", json.dumps({"status": status}))
        server.kubectl("wait", "node", NODE, "--for=condition=Ready", "--timeout=5m")
        server.start(
            PROGRAM.parent / "kube-router", admin, f"--hostname-override={NODE}",
            "--run-firewall", "--run-router=false", "--run-service-proxy=false",
        )  # fmt: skip
        yield server


@contextmanager
def _namespaces() -> Iterator[list[str]]:
    """The words before a command that is to run in the node's namespaces. They have a network card to this machine."""
    # Whatever ends this process ends them.
    command = ["setpriv", "--pdeathsig=KILL", "unshare", "--mount", "--net", "--pid", "--fork", "--kill-child"]
    command += ["--mount-proc", "bash", "-euc", NAMESPACES, "node", FOLDER]
    outer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert outer.stdout.readline() == "ready\n"
        inner = run("pgrep", "--parent", outer.pid).strip()
        within = ["nsenter", f"--target={inner}", "--mount", "--net", "--pid", "--"]
        run("ip", "link", "add", LINK, "type", "veth", "peer", "name", "eth0", "netns", inner)
        for where, name, address in (([], LINK, HOST), (within, "eth0", ADDRESS)):
            run(*where, "ip", "address", "add", f"{address}/24", "dev", name)
            run(*where, "ip", "link", "set", name, "up")
        run(*within, "ip", "route", "add", "default", "via", HOST)
        yield within
    finally:
        outer.kill()
        outer.wait()


def _volume(name: str) -> dict:
    """A volume on the node. It is local, since a hostPath knows no fsGroup."""
    here = [{"key": "kubernetes.io/hostname", "operator": "In", "values": [NODE]}]
    spec = {
        "capacity": {"storage": "200Gi"},
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": "local",
        "local": {"path": str(FOLDER / name)},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": here}]}},
    }
    return {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": spec}


def _cgroups() -> list[Path]:
    """The node's control groups: of version 1 there are several."""
    root = Path("/sys/fs/cgroup")
    roots = [root] if (root / "cgroup.procs").exists() else [file.parent for file in root.glob("*/cgroup.procs")]
    return [each / CGROUP for each in roots]


def _remove() -> None:
    """Removes a node's files and control groups, as soon as its last process has gone."""
    subprocess.run(["ip", "link", "delete", LINK], capture_output=True)  # by itself it goes minutes later
    deadline = time.monotonic() + 60
    while FOLDER.exists() or any(group.exists() for group in _cgroups()):
        assert time.monotonic() < deadline, f"{FOLDER} or {CGROUP} is still in use"
        for root in _cgroups():
            for group, *_ in os.walk(root, topdown=False):
                with suppress(OSError):
                    os.rmdir(group)
        shutil.rmtree(FOLDER, ignore_errors=True)
        time.sleep(0.2)


def import_image(built: str, *names: str) -> None:
    """Brings an image of buildah's to the node, also under other names."""
    file, ctr = FOLDER / "image.tar", ["ctr", f"--address={SOCKET}", "--namespace=k8s.io", "images"]
    run("buildah", "push", "--quiet", built, f"docker-archive:{file}:{built}")
    run(*ctr, "import", file)
    file.unlink()
    for name in names:
        run(*ctr, "tag", built, name)


def import_images(kinds: Iterable[str]) -> None:
    """Brings the images that the overlay asks for to the node, and posgap's."""
    asked = {each["image"] for made in pod_templates(overlay("local")).values() for each in containers(made["spec"])}
    import_image(training_operators.IMAGE)
    import_image("localhost/posgap-test-train:latest", image(TRAIN))
    for name in ("postgres", "seaweedfs"):
        # In containerd a name with a digest has no tag.
        names = [re.sub(":[^:]*@", "@", each) for each in asked if f"/{name}:" in each]
        import_image(f"localhost/posgap-test-{name}:latest", *names)
    for kind in kinds:
        import_image(image(kind), *([image(SERVE)] if kind == CPU else ()))


@contextmanager
def with_overlay(kinds: Sequence[str] = (CPU, "mlflow")) -> Iterator[ApiServer]:
    """A cluster with these images of posgap, Trainer, Kueue and the overlay `local`, where MLflow is up; one that is
    kept, if any."""
    kept = ApiServer(FOLDER, json.loads(WITHIN.read_text()) if WITHIN.exists() else ())
    if kept.is_ready():
        yield kept
        return
    with running(kinds) as server:
        import_images(kinds)
        server.kubectl("apply", "--server-side", f"--filename={GO}/node.yaml")
        server.kubectl("apply", "--server-side", "--filename=-", text=yaml.safe_dump_all(map(_volume, VOLUMES)))
        training_operators.install(server)
        server.apply_local("kubectl taint", node=NODE)
        yield server


@contextmanager
def pods(server: ApiServer, made: list[dict]) -> Iterator[dict[str, str]]:
    """Runs pods, and their namespaces; yields their addresses by their names."""
    names = sorted({each["metadata"]["namespace"] for each in made})
    spaces = [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}} for name in names]
    server.call("create", "--filename=-", text=yaml.safe_dump_all(spaces))
    text = yaml.safe_dump_all(made)
    try:
        server.kubectl("create", "--filename=-", text=text)
        server.kubectl("wait", "--for=jsonpath={.status.phase}=Running", "--timeout=2m", "--filename=-", text=text)
        found = json.loads(server.kubectl("get", "--output=json", "--filename=-", text=text))["items"]
        yield {each["metadata"]["name"]: each["status"]["podIP"] for each in found}
    finally:
        server.call("delete", "--force", "--filename=-", text=text)


def output(server: ApiServer, made: dict) -> str:
    """What a pod printed, which ends well."""
    name, namespace = made["metadata"]["name"], made["metadata"]["namespace"]

    def phase() -> str:
        return server.kubectl("-n", namespace, "get", "pod", name, "--output=jsonpath={.status.phase}")

    server.create(made)
    server.wait_for(lambda: phase() in ("Succeeded", "Failed"))
    printed = server.kubectl("-n", namespace, "logs", name)
    assert phase() == "Succeeded", printed
    server.kubectl("-n", namespace, "delete", "pod", name)
    return printed


def add_addresses(server: ApiServer, pod: str, addresses: Iterable[str]) -> None:
    """Gives a pod further addresses, as what is outside of the cluster has them."""
    for space in run(*server.within, "ls", "/run/netns").split():
        if f" {pod}/" in run(*server.within, "ip", "-netns", space, "address"):
            for each in addresses:
                run(*server.within, "ip", "-netns", space, "address", "add", f"{each}/32", "dev", "eth0")
                run(*server.within, "ip", "route", "add", f"{each}/32", "via", pod)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with suppress(KeyboardInterrupt), with_overlay(sys.argv[1:]) as up:
        print(f"export KUBECONFIG={up.kubeconfig}  # until Ctrl-C", flush=True)
        signal.pause()
