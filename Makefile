# make demo   sets up .venv and runs the demo
# make test   sets up .venv and runs the core of the tests, in minutes
# make test-full   runs the tests that take longer, a second and more each
# make test-all   both, with those that otherwise run each night: endurance, and what learning alone can show
# make test-real   the tests on weights that others trained, which it downloads the first time (SmolLM2, 93 MB)
# make smollm2   gets SmolLM2-135M-Instruct and makes examples for it, runs/smollm2/kv.jsonl
# make types   checks the types with mypy
# make coverage   which lines and branches the tests run, in other processes too (ARGS: a part of the suite)
# make hashes   hashes.txt and those of infra/images, after a change of constraints.txt
# make containers   builds the images cpu and mlflow, and runs them and the manifests of MLflow (root, podman; ten minutes)
# make manifests   checks infra/kubernetes and renders it to build/manifests/ (needs kubectl)
# make s3 S3=ceph   the tests of S3 against a real server in place of moto's (ceph, or rclone; tests/helpers/s3_servers.py)
# make package   builds the wheel and the source distribution, checks both, and tries the wheel in an empty environment
# make docs   builds the site of docs/ into build/site/
# make inspect   the tests of Inspect, which wants other versions than ours, in an environment of its own
# make frameworks   the code of docs/rag.md in LangChain and in Haystack themselves
# make oldest   the tests of what runs models, with the oldest torch and transformers that pyproject.toml allows
# make newest   the same with the newest ones
# make results   every figure of docs/results.md, by the commands of its last section (ONLY, TIMES, DATA)
# make benchmarks   every script of benchmarks/ with --quick, in ten minutes
# make screenshots   the pictures in docs/ of the demo's pages, by a headless Chromium
#
# TORCH_INDEX_URL: where pip also looks for torch, e.g. for the build without CUDA:
#   make demo TORCH_INDEX_URL=https://download.pytorch.org/whl/cpu

PYTHON ?= python3
VENV ?= .venv
TORCH_INDEX_URL ?=
DEMO_ARGS ?=
WORKERS ?= 1
# Long tests wait for servers and processes of theirs more than they compute; the core has a process for each processor,
# since each reads the whole suite first.
TEST_PROCESSES ?= 4
CHAOS_SECONDS ?= 600
S3 ?= ceph
IMAGES ?= cpu mlflow gpu-train gpu-serve
# What the demo, the pipeline and the targets here need beside the core, on any machine.
EXTRAS = mlflow,kfp,s3,tables,validate

PIP = $(VENV)/bin/python -m pip install --disable-pip-version-check --quiet --no-compile --constraint constraints.txt
# uv installs several times as quickly, and only files that hashes.txt knows. Pip takes over where uv fails for any other
# reason: it knows settings of a machine that uv does not.
UV = VIRTUAL_ENV=$(abspath $(VENV)) $(VENV)/bin/uv pip
install = $(UV) install --quiet --constraint constraints.txt --constraint hashes.txt $(1) 2> $(VENV)/uv.log \
	|| { cat $(VENV)/uv.log >&2; ! grep -q 'Hash mismatch' $(VENV)/uv.log && $(PIP) $(1); }

# Modules are compiled once, as they are imported, also where a machine's settings would have each process do it anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo smoke smollm2 test test-full test-all test-real types coverage docs hashes mutants chaos lint package mlproject manifests pipeline images images-check images-scan containers s3 inspect frameworks oldest newest results benchmarks screenshots clean

demo: $(VENV)/.installed
	$(VENV)/bin/posgap demo $(DEMO_ARGS)

# Every step of the demo on next to no data, in a minute or two.
smoke: $(VENV)/.installed
	$(VENV)/bin/posgap demo --smoke --out runs/smoke

# Weights that others trained, as benchmarks/real_models.py gets them, and records that are not beyond them.
smollm2: $(VENV)/.installed
	$(VENV)/bin/posgap data make kv --n-docs 10 --n-examples 20 --force --out runs/smollm2/uuids.jsonl
	$(VENV)/bin/posgap data import --format litm-kv --input runs/smollm2/uuids.jsonl --key-digits 8 --value-digits 8 \
		--force --out runs/smollm2/kv.jsonl
	$(PIP) gguf
	$(VENV)/bin/python benchmarks/real_models.py smollm2

test test-full test-all: $(VENV)/.installed-test
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/python -m pytest $(IN_PROCESSES) $($@)

IN_PROCESSES = --numprocesses $(TEST_PROCESSES) --maxprocesses 16 --dist loadfile --no-loadscope-reorder
test: TEST_PROCESSES = logical
test-full = -m 'full and not nightly and not real'
test-all = -m 'not real'

test-real: $(VENV)/.installed-test
	$(VENV)/bin/python -m pytest --durations 20 -m real tests

docs: $(VENV)/.installed-test
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/python -m mkdocs build

# The core, or ARGS: another part of the suite, like "tests/gating/test_gate.py", or "-m ''" for all.
coverage: $(VENV)/.installed-test
	rm -rf build/coverage && mkdir -p build/coverage
	$(VENV)/bin/coverage run -m pytest --quiet $(IN_PROCESSES) $(ARGS)
	$(VENV)/bin/coverage combine --quiet
	$(VENV)/bin/coverage report

lint: $(VENV)/.installed-test
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

# mypy knows nothing of package-dir, so it reads the package as a wheel has it. What setuptools leaves in build/lib would
# be in the next wheel, whatever has become of it in the tree.
types: $(VENV)/.installed-test
	rm -rf build/lib build/types
	$(PIP) --no-build-isolation --no-deps --target build/types .
	rm -rf build/lib
	$(VENV)/bin/mypy

mutants: $(VENV)/.installed-test
	OMP_NUM_THREADS=1 $(VENV)/bin/python tests/helpers/mutants.py $(MODULES) --workers $(WORKERS) $(if $(SAMPLE),--sample $(SAMPLE)) \
		$(if $(SURVIVORS),--survivors)

# Faults of every kind, with other moments and values each time; writes the table that docs/troubleshooting.md shows.
chaos: $(VENV)/.installed-test
	OMP_NUM_THREADS=1 $(VENV)/bin/python tests/helpers/chaos.py --seconds $(CHAOS_SECONDS)

# The wheel and the source distribution, in build/dist/, and whether PyPI would take them; and the wheel's demo where there
# is nothing else. The two checks have an environment of their own, since nothing else here needs what they need.
package: $(VENV)/.installed-test
	rm -rf build/dist build/empty
	$(VENV)/bin/python -m build --quiet --outdir build/dist .
	test -x build/checks/bin/python || $(PYTHON) -m venv build/checks
	build/checks/bin/python -m pip install --disable-pip-version-check --quiet twine check-wheel-contents
	build/checks/bin/twine check --strict build/dist/*
	build/checks/bin/check-wheel-contents build/dist/*.whl
	$(PYTHON) -m venv build/empty
	build/empty/bin/python -m pip install --disable-pip-version-check --quiet --constraint constraints.txt torch \
		$(if $(TORCH_INDEX_URL),--extra-index-url $(TORCH_INDEX_URL))
	build/empty/bin/python -m pip install --disable-pip-version-check --quiet --constraint constraints.txt \
		"$$(echo build/dist/*.whl)[$(EXTRAS)]"
	cd build/empty && bin/posgap --version && PATH="$$PWD/bin:$$PATH" bin/posgap demo --smoke --out smoke

mlproject: $(VENV)/.installed
	$(VENV)/bin/python -m posgap.cli.mlproject > MLproject

# The compiled pipelines, to be uploaded in the KFP UI.
pipeline: $(VENV)/.installed
	$(VENV)/bin/posgap pipeline compile --out pipelines/mitigation.yaml
	$(VENV)/bin/posgap pipeline compile --pipeline watch --out pipelines/watch.yaml

manifests: $(VENV)/.installed-test
	$(VENV)/bin/python -m pytest --quiet -m '' tests/infra/test_kubernetes.py tests/infra/test_kubernetes_security.py
	mkdir -p build/manifests
	kubectl kustomize infra/kubernetes/overlays/local > build/manifests/local.yaml
	kubectl kustomize infra/kubernetes/overlays/aws > build/manifests/aws.yaml

# The container images, with docker, podman or buildah: make images IMAGES=cpu
images:
	infra/images/images.sh build $(IMAGES)

images-check:
	infra/images/images.sh check $(IMAGES)

# Needs pip-audit and debsecan, and the network.
images-scan:
	infra/images/images.sh scan $(IMAGES)

# Needs root, kubectl, and Debian's podman, buildah, runc, catatonit, debootstrap, netavark and iptables.
containers: $(VENV)/.installed-test
	POSGAP_CONTAINERS=1 TORCH_INDEX_URL=$(TORCH_INDEX_URL) $(VENV)/bin/python -m pytest -m '' tests/infra/test_containers.py

# Needs Debian's radosgw, ceph-mon and ceph-osd, or rclone 1.65 or newer.
s3: $(VENV)/.installed-test
	OMP_NUM_THREADS=1 POSGAP_S3=$(S3) $(VENV)/bin/python -m pytest -m "" tests/storage/test_storage.py tests/storage/test_versions.py tests/storage/test_s3_*.py tests/distillation/test_s3_training.py \
		tests/tracking/test_server.py

inspect: build/inspect/.installed
	OMP_NUM_THREADS=1 build/inspect/bin/python -m pytest -m '' tests/peers/test_inspect.py

frameworks: $(VENV)/.installed-test
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --upgrade \
		--target build/frameworks langchain-core haystack-ai
	HAYSTACK_TELEMETRY_ENABLED=False PYTHONPATH=build/frameworks $(VENV)/bin/python -m pytest -m '' tests/docs/test_frameworks.py

# What runs models is tested in the files that import one of these.
oldest newest: %: build/%/.installed
	OMP_NUM_THREADS=1 build/$@/bin/python -m pytest $(IN_PROCESSES) -m 'not nightly and not real' \
		$$(grep -rlE '^ *(from|import) (torch|transformers|posgap\.models|posgap\.stages\.sweep)\b' tests --include 'test_*.py')

# Environments where some packages, LOOSE, have other versions than constraints.txt says; all else is as elsewhere.
build/inspect/.installed: LOOSE = boto3|botocore|s3transfer|fsspec
build/inspect/.installed: EXTRAS = test,inspect
build/oldest/.installed build/newest/.installed: LOOSE = torch|transformers
build/oldest/.installed build/newest/.installed: EXTRAS = test
build/%/.installed: pyproject.toml setup.py constraints.txt
	$(PYTHON) -m venv --clear build/$*
	grep -vE '^($(LOOSE))==' constraints.txt > build/$*/constraints.txt
	$(if $(filter oldest,$*),sed -nE 's/^ *"($(LOOSE))>=([0-9.]+).*/\1==\2/p' pyproject.toml >> build/$*/constraints.txt)
	build/$*/bin/python -m pip install --quiet --constraint build/$*/constraints.txt torch \
		$(if $(TORCH_INDEX_URL),--extra-index-url $(TORCH_INDEX_URL))
	build/$*/bin/python -m pip install --quiet --constraint build/$*/constraints.txt --editable '.[$(EXTRAS)]'
	@touch $@

# ONLY: some of the figures, like "weights demo"; TIMES: how often each is run; DATA: the public files.
results: $(VENV)/.installed-test
	$(VENV)/bin/python benchmarks/results.py $(if $(TIMES),--times $(TIMES)) $(if $(DATA),--data $(DATA)) $(ONLY)

# Each script with --quick: it runs, and both of its sides compute the same.
benchmarks: $(VENV)/.installed-test
	OMP_NUM_THREADS=1 $(VENV)/bin/python benchmarks/results.py --quick

screenshots: $(VENV)/.installed-test
	test -f runs/demo/curves.html || $(MAKE) demo
	$(VENV)/bin/python benchmarks/screenshots.py

# After every change of constraints.txt, or of what images install besides: the sha256s of all files that PyPI has of these
# versions. Those of torch without CUDA are of another index: infra/images/torch-cpu.txt.
compile = $(UV) compile --quiet --no-annotate --generate-hashes --custom-compile-command 'make hashes' --output-file $(1) -
hashes: $(VENV)/.torch
	grep -v '^torch==' constraints.txt | $(call compile,hashes.txt) --no-deps
	grep -oE '^[A-Za-z][^ ]+' infra/images/gpu-serve.txt | $(call compile,infra/images/gpu-serve.txt) --no-deps
	grep -oE '^[A-Za-z][^ ]+' infra/images/flash-attn.txt | $(call compile,infra/images/flash-attn.txt) --no-deps
	echo cyclonedx-bom==7.5.0 | $(call compile,infra/images/cyclonedx.txt)

clean:
	rm -rf $(VENV) runs build

# torch comes first: what is installed after it finds its build and brings no other. What it needs comes with the rest, by
# hashes; its own are in no list, since its builds are many and may come from a disk.
$(VENV)/.torch: pyproject.toml setup.py constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("posgap needs Python 3.11 or newer, found " + sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	@echo "installing torch, then posgap; this takes about two minutes"
	$(PIP) --no-deps torch uv $(if $(TORCH_INDEX_URL),--extra-index-url $(TORCH_INDEX_URL))
	@touch $@

$(VENV)/.installed: $(VENV)/.torch
	$(call install,--editable '.[$(EXTRAS)]')
	@touch $@

$(VENV)/.installed-test: $(VENV)/.torch
	$(call install,--editable '.[test]')
	@touch $(VENV)/.installed $@
