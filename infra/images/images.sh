#!/usr/bin/env bash
# Builds posgap's images, checks them, or looks for known vulnerabilities in them:
#   infra/images/images.sh build|check|scan [cpu] [mlflow] [gpu-train] [gpu-serve]
#
# ENGINE       docker, podman or buildah; empty: the first that works here
# REGISTRY     what the names begin with
# BUILD_FLAGS  further options of the build, like --build-arg BASE=... or --secret id=pip,src=pip.conf
set -euo pipefail
cd "$(dirname "$0")/../.."

REGISTRY=${REGISTRY:-ghcr.io/posgap}
# Where the source can be seen; empty where nobody said so in pyproject.toml.
SOURCE=$(sed -n 's/^repository = "\(.*\)"/\1/p' pyproject.toml)
VERSION=$(sed -n 's/^__version__ = "\(.*\)"/\1/p' src/posgap/__init__.py)
# Uncompressed, in MB. What is over budget is looked into, not waved through.
declare -A BUDGETS=([cpu]=2000 [mlflow]=1000 [gpu-train]=9000 [gpu-serve]=14000)

fail() { echo "images: $*" >&2; exit 2; }

engine() {
    for candidate in ${ENGINE:-docker podman buildah}; do
        if command -v "$candidate" > /dev/null && "$candidate" info > /dev/null 2>&1; then
            echo "$candidate"
            return
        fi
    done
    fail "${ENGINE:-docker, podman and buildah}: not installed, or its daemon is not running"
}

build() { # image target
    local revision
    revision=$(git rev-parse HEAD 2> /dev/null || echo unknown)
    # shellcheck disable=SC2086  # the flags are words
    DOCKER_BUILDKIT=1 "$engine" build --file infra/images/Dockerfile --target "$2" --tag "$1" \
        --build-arg "VERSION=$VERSION" --build-arg "REVISION=$revision" --build-arg "SOURCE=$SOURCE" ${BUILD_FLAGS:-} .
    mkdir -p build/images
    bill "$1" > "build/images/$2.cdx.json"
    echo "images: built $1; what is in it: build/images/$2.cdx.json"
}

bill() { # image; the list of what is in it, by syft where it is installed, else the one of Python packages it carries
    if command -v syft > /dev/null; then
        syft --quiet --output cyclonedx-json "$1"
    else
        inside "$1" cat /opt/posgap/share/posgap/sbom.cdx.json
    fi
}

inside() { # image command...
    local image=$1 container
    shift
    if [ "$engine" != buildah ]; then
        "$engine" run --rm --network none --entrypoint "$1" "$image" "${@:2}"
        return
    fi
    container=$(buildah from "$image")
    buildah run "$container" -- "$@"
    buildah rm "$container" > /dev/null
}

megabytes() { # image
    if [ "$engine" = buildah ]; then
        buildah images --format '{{.Size}}' "$1" | tr -d ' B' | numfmt --from=si --to-unit=M
    else
        "$engine" image inspect --format '{{.Size}}' "$1" | numfmt --to-unit=M
    fi
}

check() { # image target
    local size version user
    size=$(megabytes "$1") || fail "$1: not built; make images"
    [ "$size" -le "${BUDGETS[$2]}" ] || fail "$1: $size MB, over the budget of ${BUDGETS[$2]} MB"
    user=$(inside "$1" id -u)
    [ "$user" = 10001 ] || fail "$1: runs as user $user, not as 10001"
    version=$(inside "$1" posgap --version)
    [ "$version" = "posgap, version $VERSION" ] || fail "$1: holds \"$version\", and the tree is $VERSION"
    inside "$1" cat /opt/posgap/share/posgap/sbom.cdx.json | grep --quiet '"bomFormat": *"CycloneDX"' || fail "$1: no SBOM"
    echo "images: $1: $size of ${BUDGETS[$2]} MB, user 10001, $version"
}

scan() { # image target; needs pip-audit and debsecan
    local lists=build/images/$2 found="" fixable tool
    for tool in pip-audit debsecan; do
        command -v "$tool" > /dev/null || fail "scan needs pip-audit (of pip) and debsecan (of Debian): no $tool here"
    done
    mkdir -p build/images
    # Advisories know no local versions, like 2.13.0+cpu, and posgap is on no index.
    inside "$1" cat /opt/posgap/share/posgap/sbom.cdx.json | python3 -c '
import json, sys
for each in json.load(sys.stdin)["components"]:
    if each.get("purl", "").startswith("pkg:pypi/") and each["name"] != "posgap":
        print(each["name"] + "==" + each["version"].partition("+")[0])
' > "$lists.txt"
    inside "$1" cat /var/lib/dpkg/status > "$lists.dpkg"
    # A package that nobody can say anything about is a finding too (--strict).
    pip-audit --strict --disable-pip --no-deps --progress-spinner off --requirement "$lists.txt" || found=yes
    fixable=$(debsecan --suite bookworm --only-fixed --format detail --status "$lists.dpkg")
    if [ -n "$fixable" ]; then
        echo "$fixable"
        found=yes
    fi
    [ -z "$found" ] || fail "$1: holds packages with known vulnerabilities; newer ones are in the index, or in Debian"
    echo "images: $1: $(wc -l < "$lists.txt") Python packages and $(grep -c ^Package: "$lists.dpkg") of Debian, none known to be vulnerable"
}

verb=${1:-}
[[ $verb = build || $verb = check || $verb = scan ]] || fail "say build, check or scan, and which images (cpu, mlflow, gpu-train, gpu-serve); none: all"
shift
engine=$(engine)
[ $# -gt 0 ] || set -- cpu mlflow gpu-train gpu-serve
for target in "$@"; do
    [ -n "${BUDGETS[$target]:-}" ] || fail "$target: no such image; cpu, mlflow, gpu-train or gpu-serve"
    "$verb" "$REGISTRY/posgap-$target:$VERSION" "$target"
done
