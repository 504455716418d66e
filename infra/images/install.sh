# Installs packages, and what they need: pip chooses within constraints.txt, and then installs files of known sha256s alone.
# Sources are built by the setuptools that is there: what pip would bring for that has no sha256.
#   sh install.sh setuptools        sh install.sh --requirement requirements.txt einops
set -eu
# Of CUDA's libraries torch says no more than what they must not be older than.
grep -oE '^(nvidia|cuda|triton)[^ ]*' gpu-serve.txt > cuda.txt
pip install --quiet --dry-run --report chosen.json --constraint constraints.txt --constraint cuda.txt "$@"
python requirements.py --locked chosen.json > locked.txt
pip install --require-hashes --no-deps --no-build-isolation --requirement locked.txt
