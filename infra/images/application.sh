# posgap alone, as a thin layer over its environment: what /application holds is copied over /opt/posgap. With it goes
# the list of all Python packages in the image, in CycloneDX's format.
set -eu
pip install --no-deps --ignore-installed --prefix /application /wheels/posgap-*.whl
pip install --no-deps /wheels/posgap-*.whl
mkdir -p /application/share/posgap
/opt/cyclonedx/bin/cyclonedx-py environment --output-reproducible --output-file /application/share/posgap/sbom.cdx.json \
    /opt/posgap/bin/python
