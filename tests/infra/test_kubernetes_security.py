"""What the pods of infra/kubernetes may do: as processes, with the Kubernetes API, with secrets, over the network."""

import copy

import pytest
from manifests import (
    KUBERNETES,
    SECURED,
    containers,
    each_overlay,
    env_from,
    insecurities,
    needs_kubectl,
    of_kind,
    overlay,
    pod_templates,
)

from posgap.options.cluster import ClusterConfig

pytestmark = needs_kubectl
PROMOTE = ClusterConfig().promote_secret
SECRETS = {"posgap-mlflow-db", "posgap-mlflow-auth", "posgap-mlflow", "posgap-s3", "posgap-hub", "posgap-oidc"}
KEYS = {("posgap-mlflow-tls", "mlflow"), ("posgap-oidc-tls", "oauth2-proxy")}  # of certificates


@each_overlay
def test_pods_are_restricted_with_a_read_only_root_and_requests(name):
    pods = pod_templates(overlay(name))
    assert {"Deployment mlflow", "ClusterTrainingRuntime posgap-deepspeed"} <= pods.keys()
    assert {owner: insecurities(pod["spec"]) for owner, pod in pods.items()} == {owner: [] for owner in pods}


@pytest.mark.parametrize(
    "change, found",
    [
        (lambda pod, main: pod["securityContext"].pop("runAsNonRoot"), "runAsNonRoot"),
        (lambda pod, main: main["securityContext"].update(runAsUser=0), "runAsUser"),
        (lambda pod, main: pod["securityContext"]["seccompProfile"].update(type="Unconfined"), "seccompProfile"),
        (lambda pod, main: pod["securityContext"].update(sysctls=[]), "sysctls"),
        (lambda pod, main: main["securityContext"].update(privileged=True), "privileged"),
        (lambda pod, main: main["securityContext"].pop("allowPrivilegeEscalation"), "allowPrivilegeEscalation"),
        (lambda pod, main: main["securityContext"]["capabilities"].update(drop=["NET_RAW"]), "capabilities"),
        (lambda pod, main: main["securityContext"]["capabilities"].update(add=["SYS_ADMIN"]), "capabilities"),
        (lambda pod, main: main["securityContext"].update(readOnlyRootFilesystem=False), "readOnlyRootFilesystem"),
        (lambda pod, main: main["resources"]["requests"].pop("memory"), "requests"),
        (lambda pod, main: pod.update(hostNetwork=True), "hostNetwork"),
        (lambda pod, main: pod["volumes"].append({"name": "host", "hostPath": {"path": "/"}}), "volume host"),
    ],
)
def test_a_loosened_pod_is_noticed(change, found):
    pod = copy.deepcopy(pod_templates(overlay("local"))["Deployment mlflow"]["spec"])
    change(pod, pod["containers"][0])
    assert any(each.endswith(found) for each in insecurities(pod))


@each_overlay
def test_roles_name_what_they_allow(name):
    objects = overlay(name)
    roles = of_kind(objects, "Role") | of_kind(objects, "ClusterRole")
    for rule in (rule for role in roles.values() for rule in role["rules"]):
        assert not any("*" in words for words in rule.values()), rule
        if "secrets" in rule["resources"] or "configmaps" in rule["resources"]:
            assert rule["resourceNames"] and rule["verbs"] == ["get"]
    bindings = of_kind(objects, "RoleBinding") | of_kind(objects, "ClusterRoleBinding")
    accounts = of_kind(objects, "ServiceAccount")
    for binding in bindings.values():
        assert binding["roleRef"]["name"] in roles
        assert {subject["name"] for subject in binding["subjects"]} <= accounts.keys() - {"posgap-train", "default"}


@each_overlay
def test_the_pipeline_may_run_train_jobs_and_read_logs_and_change_nothing_else(name):
    objects = overlay(name)
    may = {
        (resource, verb)
        for rule in of_kind(objects, "Role")["posgap-pipeline"]["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert {("trainjobs", verb) for verb in ("create", "get", "list", "watch", "delete")} <= may
    assert {("pods", "list"), ("pods/log", "get")} <= may
    reading = {"get", "list", "watch"}
    assert {(resource, verb) for resource, verb in may if verb not in reading} == {
        ("trainjobs", "create"),
        ("trainjobs", "delete"),
    }


@each_overlay
def test_only_the_pipeline_s_pods_hold_a_token_for_the_kubernetes_api(name):
    accounts = of_kind(overlay(name), "ServiceAccount")
    with_token = {account for account, each in accounts.items() if each.get("automountServiceAccountToken", True)}
    assert with_token == {"posgap-pipeline"}
    for pod in pod_templates(overlay(name)).values():
        assert pod["spec"]["automountServiceAccountToken"] is False


@each_overlay
def test_secrets_are_referred_to_and_never_contained(name):
    objects = overlay(name)
    assert not of_kind(objects, "Secret")
    pods = pod_templates(objects).values()
    made = [container for pod in pods for container in containers(pod["spec"])]
    referred = {name for container in made for name in env_from(container, "secretRef")}
    for variable in (variable for container in made for variable in container.get("env", [])):
        source = variable.get("valueFrom", {}).get("secretKeyRef")
        referred |= {source["name"]} if source else set()
        assert source or not any(word in variable["name"] for word in ("PASSWORD", "SECRET", "TOKEN")), variable
    assert {"posgap-mlflow-db", "posgap-mlflow-auth"} <= referred <= SECRETS
    # No process has promotion's log-in in its environment; the server's pod alone has it at hand.
    volumes = {pod["metadata"]["labels"]["app.kubernetes.io/name"]: pod["spec"].get("volumes", []) for pod in pods}
    mounted = {
        (each["secret"]["secretName"], who) for who, all_ in volumes.items() for each in all_ if "secret" in each
    }
    logins = {("posgap-mlflow", "mlflow"), (PROMOTE, "mlflow")}
    assert mounted == logins | (KEYS if name.endswith(SECURED) else set())
    described = (KUBERNETES / "README.md").read_text()
    assert all(f"`{secret}`" in described for secret in {*SECRETS, PROMOTE, *dict(KEYS)})


@each_overlay
def test_nothing_comes_in_or_goes_out_by_default(name):
    assert of_kind(overlay(name), "NetworkPolicy")["default-deny"]["spec"] == {
        "podSelector": {},
        "policyTypes": ["Ingress", "Egress"],
    }


@each_overlay
def test_selectors_find_pods(name):
    """A selector with a slip of the pen selects nothing, and nothing complains."""
    objects = overlay(name)
    carried = [pod["metadata"]["labels"].items() for pod in pod_templates(objects).values()]
    selectors = [each["spec"]["selector"] for each in of_kind(objects, "Service").values()]
    selectors += [each["spec"]["selector"]["matchLabels"] for each in of_kind(objects, "PodDisruptionBudget").values()]
    for policy in of_kind(objects, "NetworkPolicy").values():
        selectors.append(policy["spec"]["podSelector"].get("matchLabels", {}))
        for rule in [*policy["spec"].get("ingress", []), *policy["spec"].get("egress", [])]:
            peers = rule.get("from", []) + rule.get("to", [])
            ours = [peer["podSelector"] for peer in peers if "podSelector" in peer and "namespaceSelector" not in peer]
            selectors += [peer.get("matchLabels", {}) for peer in ours]
    for selector in selectors:
        assert any(selector.items() <= labels for labels in carried), selector
