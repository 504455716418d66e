# What is generated, and committed with its cause or shown: CONTRIBUTING's map names the files.

mlproject: $(VENV)/.installed  ## MLproject, after a change of parameters
	$(VENV)/bin/python -m posgap.cli.mlproject > MLproject

pipeline: $(VENV)/.installed  ## the compiled pipelines, to be uploaded in the KFP UI, after a change of parameters
	$(VENV)/bin/posgap pipeline compile --out pipelines/mitigation.yaml
	$(VENV)/bin/posgap pipeline compile --pipeline watch --out pipelines/watch.yaml

tables: $(VENV)/.installed-test  ## the tables in the pages of docs/, after a change of fields, forms or figures
	$(VENV)/bin/python docs/tables.py

# The sha256s of all files that PyPI has of these versions. Those of torch without CUDA are of another index, in torch-cpu.txt.
compile = $(UV) compile --quiet --no-annotate --generate-hashes --custom-compile-command 'make hashes' --output-file infra/images/$(1) -
hashes: $(VENV)/.torch  ## the lists of sha256s in infra/images, after a change of constraints.txt or of what images install
	grep -v '^torch==' constraints.txt | $(call compile,hashes.txt) --no-deps
	$(VENV)/bin/python infra/images/requirements.py all vllm | $(call compile,gpu-serve.txt) --python-version 3.11
	grep -oE '^[A-Za-z][^ ]+' infra/images/flash-attn.txt | $(call compile,flash-attn.txt) --no-deps
	echo cyclonedx-bom==7.5.0 | $(call compile,cyclonedx.txt)

results: $(VENV)/.installed-test  ## every figure of docs/results.md, by the commands of its last section (ONLY, TIMES)
	$(VENV)/bin/python benchmarks/results.py $(if $(TIMES),--times $(TIMES)) $(ONLY)

benchmarks: $(VENV)/.installed-test  ## every script of benchmarks/ with --quick, whose sides compute the same: ten minutes
	OMP_NUM_THREADS=1 $(VENV)/bin/python benchmarks/results.py --quick

# Without WRITE=--write, the pages must say what is printed, but for figures. The pictures need a Chromium on PATH.
demo_model = runs/demo/seed-0-*/model
transcripts: $(VENV)/.installed-test  ## what guides print, by running their commands, and the pictures; fails where pages differ (WRITE)
	test -f runs/demo/curves.html || $(MAKE) demo
	rm -rf build/dist
	$(VENV)/bin/python -m build --quiet --wheel --outdir build/dist .
	$(VENV)/bin/python benchmarks/transcripts.py first-look first-log first-gate rag --wheel build/dist/*.whl --model $(demo_model) $(WRITE)
	$(VENV)/bin/python benchmarks/transcripts.py distillation gate registry --demo runs/demo $(WRITE)
	! command -v chromium || $(VENV)/bin/python benchmarks/screenshots.py

smoke: $(VENV)/.installed  ## every step of the demo on next to no data, in a minute or two
	$(VENV)/bin/posgap demo --smoke --out runs/smoke

smollm2: $(VENV)/.installed  ## SmolLM2-135M-Instruct, and records that are not beyond it: runs/smollm2/kv.jsonl
	$(VENV)/bin/posgap data make kv --n-docs 10 --n-examples 20 --force --out runs/smollm2/uuids.jsonl
	$(VENV)/bin/posgap data import --format litm-kv --input runs/smollm2/uuids.jsonl --key-digits 8 --value-digits 8 \
		--force --out runs/smollm2/kv.jsonl
	$(PIP) gguf
	$(VENV)/bin/python benchmarks/real_models.py smollm2
