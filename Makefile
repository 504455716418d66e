# `make help` lists what one needs daily, `make help-all` the rest too, which is in make/*.mk. Both read the texts behind ##.
#
# TORCH_INDEX_URL: where pip also looks for torch, e.g. for the build without CUDA:
#   make demo TORCH_INDEX_URL=https://download.pytorch.org/whl/cpu

PYTHON ?= python3
VENV ?= .venv
TORCH_INDEX_URL ?=
DEMO_ARGS ?=
# Long tests wait for servers and processes of theirs more than they compute; the core has a process for each processor,
# since each reads the whole suite first.
TEST_PROCESSES ?= 4
# What the demo, the pipeline and the targets here need beside the core, on any machine.
EXTRAS = local,mlflow,kfp,s3,tables,validate

PIP = $(VENV)/bin/python -m pip install --disable-pip-version-check --quiet --no-compile --constraint constraints.txt
# uv installs several times as quickly, and only files that hashes.txt knows. Pip takes over where uv fails for any other
# reason: it knows settings of a machine that uv does not.
UV = VIRTUAL_ENV=$(abspath $(VENV)) $(VENV)/bin/uv pip
HASHES = infra/images/hashes.txt
install = $(UV) install --quiet --constraint constraints.txt --constraint $(HASHES) $(1) 2> $(VENV)/uv.log \
	|| { cat $(VENV)/uv.log >&2; ! grep -q 'Hash mismatch' $(VENV)/uv.log && $(PIP) $(1); }

# Modules are compiled once, as they are imported, also where a machine's settings would have each process do it anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help help-all $(shell sed -nE 's/^([a-z0-9 -]+):.*##.*/\1/p' Makefile make/*.mk)

demo: $(VENV)/.installed  ## runs the demo
	$(VENV)/bin/posgap demo $(DEMO_ARGS)

test: $(VENV)/.installed-test  ## runs the core of the tests, in minutes: while you work
test-full: $(VENV)/.installed-test  ## runs the tests that take longer, a second and more each
test test-full test-all:
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/python -m pytest $(IN_PROCESSES) $($@)

IN_PROCESSES = --numprocesses $(TEST_PROCESSES) --maxprocesses 16 --dist loadfile --no-loadscope-reorder
test: TEST_PROCESSES = logical
test-full = -m 'full and not nightly and not real'
test-all = -m 'not real'

lint: $(VENV)/.installed-test  ## mends what ruff can mend, and formats
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

# mypy knows nothing of package-dir, so it reads the package as a wheel has it. What setuptools leaves in build/lib would
# be in the next wheel, whatever has become of it in the tree.
types: $(VENV)/.installed-test  ## checks the types with mypy
	rm -rf build/lib build/types
	$(PIP) --no-build-isolation --no-deps --target build/types .
	rm -rf build/lib
	$(VENV)/bin/mypy

docs: $(VENV)/.installed-test  ## builds the site of docs/ into build/site/
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/python -m mkdocs build

list = awk -F ':.*  \#\# ' '/^[a-z0-9 -]+:.*  \#\# / { printf "make %-14s %s\n", $$1, $$2 }'
help:
	@$(list) Makefile

help-all: help
	@$(list) make/*.mk

include make/*.mk

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
