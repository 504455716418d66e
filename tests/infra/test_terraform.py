"""infra/terraform against infra/kubernetes/overlays/aws, which takes for granted what is made there."""

import json
import re

from manifests import of_kind, overlay
from places import ROOT

TERRAFORM = ROOT / "infra" / "terraform"
TEXT = {file.stem: file.read_text() for file in TERRAFORM.glob("*.tf")}
SETTINGS = (ROOT / "infra" / "kubernetes" / "overlays" / "aws" / "settings.env").read_text()


def settings(text: str) -> dict[str, str]:
    return dict(re.findall(r"^ *([A-Z_]+)=(.*)$", text, re.MULTILINE))


def test_the_output_is_the_settings_of_the_overlay():
    assert list(settings(TEXT["outputs"])) == list(settings(SETTINGS))


def test_the_secrets_that_the_overlay_names_are_made_with_the_keys_that_it_reads():
    made, values = re.findall(r"^  passwords = {(.*)}$", TEXT["secrets"], re.MULTILINE)[0], TEXT["secrets"]
    names = re.findall(r"([\w-]+) = \d", made) + re.findall(r'keys\(local.passwords\), \["(\w+)"\]', values)
    named = {key: value for key, value in settings(SETTINGS).items() if key.endswith("_SECRET")}
    assert sorted(f"posgap/{name}" for name in names) == sorted(named.values())
    for key, value in settings(TEXT["outputs"]).items():
        if key in named:
            assert value == f'${{aws_secretsmanager_secret.all["{named[key].removeprefix("posgap/")}"].name}}'
    for external in of_kind(overlay("aws"), "ExternalSecret").values():
        for each in external["spec"]["data"]:
            name, wanted = each["remoteRef"]["key"].removeprefix("posgap/"), each["remoteRef"]["property"]
            block = re.search(rf"^    {name}\s+= {{(.*?)}}$", values, re.MULTILINE | re.DOTALL)
            assert name == "hub" or re.search(rf"\b{wanted}\s+=", block[1]), (name, wanted)


def test_every_role_of_an_account_is_made_and_trusts_that_account_alone():
    trusted = dict(re.findall(r"^    ([\w-]+)\s+= \[(.*)\]$", TEXT["roles"], re.MULTILINE))
    asked: dict[str, set[str]] = {}
    for name, account in of_kind(overlay("aws"), "ServiceAccount").items():
        if role := account["metadata"].get("annotations", {}).get("eks.amazonaws.com/role-arn"):
            assert role.startswith(f"{settings(SETTINGS)['ROLES']}-")
            asked.setdefault(role.rpartition("/")[2], set()).add(f"posgap:{name}")
    assert asked, "the overlay names no roles"
    for role, accounts in asked.items():
        assert set(re.findall(r'"(.*?)"', trusted[role])) == accounts
    with_bucket = re.search(r'resource "aws_iam_role_policy" "bucket" {\s+for_each = toset\(\[(.*)\]\)', TEXT["roles"])[
        1
    ]
    # Those roles that a policy in infra/s3/ is for.
    policies = {file.stem: file.read_text() for file in (ROOT / "infra" / "s3").glob("*.json")}
    assert set(re.findall(r'"(.*?)"', with_bucket)) == set(policies) & set(asked)
    for text in policies.values():
        assert json.loads(text.replace("BUCKET", "b")) and text.count("BUCKET") == text.count("arn:aws:s3:::BUCKET")


def test_nodes_are_found_by_the_tag_and_role_that_the_node_classes_ask_for():
    for each in of_kind(overlay("aws"), "EC2NodeClass").values():
        (tag,) = {key for term in each["spec"]["subnetSelectorTerms"] for key in term["tags"]}
        assert re.search(rf'"{tag}"\s+= var.cluster', TEXT["network"]) and f'key         = "{tag}"' in TEXT["cluster"]
        role = each["spec"]["role"].rpartition("-")[0]
        assert f"role/{role}-${{var.cluster}}" in TEXT["nodes"]
    assert settings(SETTINGS)["NODE_IMAGE"] in TEXT["variables"]


def test_versions_are_those_that_the_cluster_is_to_have():
    readme = (ROOT / "infra" / "kubernetes" / "README.md").read_text()
    here = (TERRAFORM / "README.md").read_text()
    for name in ("Karpenter", "External Secrets"):
        version = re.search(rf"\[{name}\]\(\S+\) \| ([\d.]+) \|", readme)[1]
        assert f"--version {version} " in here
    assert f'"{re.search(r"karpenter --version ([0-9.]+)", here)[1]}"' in TEXT["variables"]


def test_two_clusters_share_an_account():
    """Every name that is unique in an account begins with the cluster's, or is AWS's to choose."""
    resources = re.findall(r'^resource "(\w+)" "(\w+)" {\n(.*?)^}', "\n".join(TEXT.values()), re.MULTILINE | re.DOTALL)
    naming = {"aws_iam_role_policy", "aws_eks_node_group", "aws_eks_addon"}  # unique within a role, or a cluster
    names = {
        (kind, name): re.search(r"^  (?:name|name_prefix|identifier|bucket)\s+= (.*)$", body, re.MULTILINE)
        for kind, name, body in resources
        if kind not in naming
    }
    named = {place: found[1] for place, found in names.items() if found and not found[1].startswith("aws_")}
    assert len(named) >= 10
    for place, value in named.items():
        assert "var.cluster" in value or value in ("local.bucket", "aws_s3_bucket.main.id"), (place, value)
    assert re.search(r'bucket\s+= coalesce\(var.bucket, "\$\{var.cluster}-', TEXT["versions"])
    assert settings(TEXT["outputs"])["ROLES"].endswith("role/${var.cluster}")
