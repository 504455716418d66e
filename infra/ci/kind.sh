#!/usr/bin/env bash
# A whole installation in kind, by the commands of infra/kubernetes/README.md and docs/kubeflow.md:
#   infra/ci/kind.sh cluster|platform|overlay|data|submit|form|logs|remove
#
# Needs docker, kind, kubectl, aws and posgap (make .venv/.installed-test), the images posgap-cpu and posgap-mlflow (make
# images IMAGES="cpu mlflow" ENGINE=docker), some 30 GB of disk and 16 GB of memory. Never run as yet.
set -euo pipefail
cd "$(dirname "$0")/../.."

NAME=posgap-ci
WORK=build/kind
USER_NAME=ada@example.com
# Kubeflow's manifests, for what its Pipelines need beside them: cert-manager, Istio, profiles.
MANIFESTS=009c88084074904c7743384ff50d3bd70012ef55
PATH=$PWD/.venv/bin:$PATH
mkdir -p "$WORK"

cluster() { # nodes labelled and tainted as documented, with one GPU that is none on those that are to have one
    local version node image
    version=$(posgap --version)
    kind create cluster --name "$NAME" --config infra/ci/kind.yaml --wait 5m
    for image in gpu-train gpu-serve; do # steps that want a GPU's image find a CPU's
        docker tag "ghcr.io/posgap/posgap-cpu:${version##* }" "ghcr.io/posgap/posgap-$image:${version##* }"
    done
    kind load docker-image --name "$NAME" "ghcr.io/posgap/posgap-"{cpu,mlflow,gpu-train,gpu-serve}":${version##* }"
    for node in $(kubectl get nodes --selector 'posgap.dev/pool in (train,inference)' --output name); do
        kubectl taint "$node" nvidia.com/gpu=true:NoSchedule
        kubectl patch "$node" --subresource=status --type=json \
            --patch='[{"op": "add", "path": "/status/capacity/nvidia.com~1gpu", "value": "1"}]'
    done
}

platform() { # Kubeflow Pipelines for several users, Trainer and Kueue
    local manifests=$WORK/manifests
    test -d "$manifests" || git clone --quiet https://github.com/kubeflow/manifests "$manifests"
    git -C "$manifests" checkout --quiet "$MANIFESTS"
    kubectl apply --server-side -k "$manifests/common/cert-manager/base"
    kubectl -n cert-manager wait deployment --all --for condition=Available --timeout 5m
    kubectl apply --server-side -k "$manifests/common/cert-manager/overlays/kubeflow"
    for part in istio-crds istio-namespace istio-install; do
        kubectl apply --server-side -k "$manifests/common/istio/$part/base"
    done
    kubectl -n istio-system wait deployment --all --for condition=Available --timeout 5m
    kubectl apply --server-side -k "$manifests/common/kubeflow-namespace/base"
    kubectl apply --server-side -k "$manifests/applications/profiles/pss"
    kubectl apply --server-side -k "$manifests/common/kubeflow-roles/base"
    kubectl apply --server-side -f "$manifests/applications/pipeline/upstream/third-party/metacontroller/base/crd.yaml"
    kubectl wait crd/compositecontrollers.metacontroller.k8s.io --for condition=established --timeout 1m
    kubectl apply --server-side --force-conflicts -k infra/ci/kubeflow
    kubectl apply --server-side -k "https://github.com/kubeflow/trainer.git/manifests/overlays/manager?ref=v2.3.0"
    kubectl apply --server-side -f https://github.com/kubernetes-sigs/kueue/releases/download/v0.19.2/manifests.yaml
    kubectl -n kubeflow wait deployment --all --for condition=Available --timeout 15m
    kubectl -n kubeflow-system wait deployment --all --for condition=Available --timeout 5m
    kubectl -n kueue-system wait deployment --all --for condition=Available --timeout 5m
}

overlay() { # both by the server's own checks; the local one for good
    kubectl apply -f infra/kubernetes/base/cluster/namespace.yaml
    secret posgap-mlflow-db PGUSER=mlflow "PGPASSWORD=$(openssl rand -base64 24)"
    secret posgap-mlflow-auth "MLFLOW_AUTH_ADMIN_PASSWORD=$(openssl rand -base64 24)" \
        "MLFLOW_FLASK_SERVER_SECRET_KEY=$(openssl rand -base64 24)"
    secret posgap-mlflow MLFLOW_TRACKING_USERNAME=posgap-pipeline "MLFLOW_TRACKING_PASSWORD=$(openssl rand -base64 24)"
    secret posgap-mlflow-promote MLFLOW_TRACKING_USERNAME=posgap-promote "MLFLOW_TRACKING_PASSWORD=$(openssl rand -base64 24)"
    secret posgap-s3 AWS_ACCESS_KEY_ID=posgap "AWS_SECRET_ACCESS_KEY=$(openssl rand -hex 24)"
    kubectl apply --server-side -k infra/kubernetes/overlays/local
    kubectl -n posgap wait configmap/kfp-launcher --for create --timeout 5m
    kubectl -n posgap patch configmap kfp-launcher --type merge --patch-file infra/kubernetes/overlays/local/launcher.yaml
    kubectl -n posgap rollout status deployment/mlflow --timeout 10m
    kubectl -n posgap exec -i deployment/mlflow -c mlflow -- python - posgap-smoke < infra/kubernetes/base/namespaced/mlflow/access.py
    # The kinds of Karpenter and of External Secrets are not in this cluster; the rest of the other overlay is.
    kubectl kustomize infra/kubernetes/overlays/aws | python -c '
import sys, yaml
absent = {"EC2NodeClass", "NodePool", "ExternalSecret", "SecretStore"}
print(yaml.safe_dump_all(each for each in yaml.safe_load_all(sys.stdin) if each["kind"] not in absent))
' | kubectl apply --server-side --dry-run=server --force-conflicts -f -
}

secret() { # name KEY=VALUE...
    local name=$1
    shift
    kubectl -n posgap create secret generic "$name" "${@/#/--from-literal=}"
}

data() { # the tiny model and its examples, in the bucket
    python -c '
import sys
from pathlib import Path
from posgap.demo import tiny_model
from posgap.options.demo import DemoConfig
from posgap.verbs.demo import make_examples
root = Path(sys.argv[1])
train, held_out = make_examples(DemoConfig(out=root, smoke=True), root)
model, _ = tiny_model.base_model(root, 0, tiny_model.QUICK)
for name, made in (("train", train), ("eval", held_out), ("model", model)):
    (root / f"{name}.path").write_text(str(made))
' "$WORK"
    forward svc/s3 posgap 8333:8333
    AWS_ACCESS_KEY_ID=$(value posgap-s3 AWS_ACCESS_KEY_ID)
    AWS_SECRET_ACCESS_KEY=$(value posgap-s3 AWS_SECRET_ACCESS_KEY)
    export AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY AWS_REGION=us-east-1 AWS_ENDPOINT_URL=http://localhost:8333
    aws s3 cp "$(cat $WORK/train.path)" s3://posgap/data/train.jsonl.gz
    aws s3 cp "$(cat $WORK/eval.path)" s3://posgap/data/eval.jsonl.gz
    aws s3 cp --recursive "$(cat $WORK/model.path)" s3://posgap/models/tiny
}

submit() { # the smoke pipeline, to its end
    local smallest
    smallest=$(python -c '
import json
from posgap.pipelines.smoke import SMALLEST
print("\n".join(f"--param={name}={value if isinstance(value, str) else json.dumps(value)}" for name, value in SMALLEST.items()))
')
    mapfile -t smallest <<< "$smallest"
    kfp
    POSGAP_CLUSTER=infra/ci/cluster.yaml posgap pipeline submit --smoke --namespace posgap --wait --timeout 3600 \
        --param data_train=s3://posgap/data/train.jsonl.gz --param data_eval=s3://posgap/data/eval.jsonl.gz \
        --param base_model=s3://posgap/models/tiny "${smallest[@]}"
}

form() { # the pipeline's form, in Chromium, as a colleague with rights in the namespace sees it
    local address
    kubectl -n posgap create rolebinding ada --clusterrole kubeflow-pipelines-edit --user "$USER_NAME"
    kfp
    address=$(posgap pipeline compile --out "$WORK/mitigation.yaml" --host "$KFP_HOST" --namespace posgap | tail --lines 1)
    python tests/helpers/kind_form.py "$WORK/mitigation.yaml" "$address" "$USER_NAME" "$WORK/form.png"
}

kfp() { # its address and a token, as posgap reads them
    forward svc/ml-pipeline-ui kubeflow 8080:80
    KFP_TOKEN=$(kubectl -n posgap create token posgap-scheduler --audience pipelines.kubeflow.org --duration 2h)
    export KFP_TOKEN KFP_HOST=http://localhost:8080
}

forward() { # service namespace ports; until this script ends
    kubectl --namespace "$2" port-forward "$1" "$3" > /dev/null &
    trap 'kill $(jobs -p) 2> /dev/null' EXIT
    timeout 60 bash -c "until (: < /dev/tcp/localhost/${3%%:*}) 2> /dev/null; do sleep 1; done"
}

value() { # secret key
    kubectl -n posgap get secret "$1" --output "jsonpath={.data.$2}" | base64 --decode
}

logs() { # what is left to look at when something failed
    kubectl get pods --all-namespaces --output wide > "$WORK/pods.txt"
    kubectl get events --all-namespaces --sort-by .lastTimestamp > "$WORK/events.txt"
    kind export logs --name "$NAME" "$WORK/logs"
}

remove() {
    kind delete cluster --name "$NAME"
}

case ${1:-} in
    cluster | platform | overlay | data | submit | form | logs | remove) "$1" ;;
    *) sed -n '2,6s/^# \{0,1\}//p' "$0" >&2 && exit 2 ;;
esac
