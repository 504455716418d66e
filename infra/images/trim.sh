# Removes from the environment what nothing imports there: packages' own tests, torch's test programs, and what is named.
set -eu
cd /opt/posgap/lib/python3.*/site-packages
find . -type d -name tests -prune -exec rm -rf {} +
rm -rf torch/test torch/bin/test_* torch/bin/*Test torch/bin/protoc* "$@"
