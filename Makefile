# make demo   sets up .venv and runs the demo
# make test   sets up .venv and runs every test
#
# TORCH_INDEX_URL: where pip also looks for torch, e.g. for the build without CUDA:
#   make demo TORCH_INDEX_URL=https://download.pytorch.org/whl/cpu

PYTHON ?= python3
VENV ?= .venv
TORCH_INDEX_URL ?=
DEMO_ARGS ?=

PIP = $(VENV)/bin/python -m pip install --disable-pip-version-check --quiet --constraint constraints.txt

.PHONY: demo test lint mlproject components clean

demo: $(VENV)/.installed
	$(VENV)/bin/posgap demo $(DEMO_ARGS)

test: $(VENV)/.installed-test
	$(VENV)/bin/ruff check .
	$(VENV)/bin/python -m pytest

lint: $(VENV)/.installed-test
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

mlproject: $(VENV)/.installed
	$(VENV)/bin/python -m posgap.mlproject > MLproject

components: $(VENV)/.installed
	$(VENV)/bin/python -m posgap.components.readmes

clean:
	rm -rf $(VENV) runs build

# torch comes first: what is installed after it finds its build and brings no other.
$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("posgap needs Python 3.11 or newer, found " + sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	@echo "installing torch, then posgap; this takes about two minutes"
	$(PIP) torch $(if $(TORCH_INDEX_URL),--extra-index-url $(TORCH_INDEX_URL))
	$(PIP) --editable .
	@touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	$(PIP) --editable '.[test]'
	@touch $@
