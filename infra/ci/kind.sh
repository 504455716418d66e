#!/usr/bin/env bash
# A whole installation in kind, by the commands of infra/kubernetes/README.md and docs/kubeflow.md:
#   infra/ci/kind.sh cluster|platform|overlay|data|submit|form|logs|remove
#
# Needs docker, kind, kubectl and posgap (make .venv/.installed-test), the images posgap-cpu and posgap-mlflow (make
# images IMAGES="cpu mlflow" ENGINE=docker), some 30 GB of disk and 16 GB of memory. Never run as yet.
set -euo pipefail
cd "$(dirname "$0")/../.."

NAME=posgap-ci
WORK=build/kind
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

logs() { # what is left to look at when something failed
    kubectl get pods --all-namespaces --output wide > "$WORK/pods.txt"
    kubectl get events --all-namespaces --sort-by .lastTimestamp > "$WORK/events.txt"
    kind export logs --name "$NAME" "$WORK/logs"
}

remove() {
    kind delete cluster --name "$NAME"
}

case ${1:-} in
    cluster | platform | logs | remove) "$1" ;;
    overlay | data | submit | form) python tests/helpers/kubeflow_steps.py "$1" ;; # as make cluster does them
    *) sed -n '2,6s/^# \{0,1\}//p' "$0" >&2 && exit 2 ;;
esac
