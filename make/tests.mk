# More tests, and what measures tests.

WORKERS ?= 1
CHAOS_SECONDS ?= 600
S3 ?= ceph

test-all: $(VENV)/.installed-test  ## test and test-full, with what otherwise runs each night: endurance, and what learning shows

test-real: $(VENV)/.installed-test  ## the tests on weights that others trained: downloads SmolLM2 the first time, 93 MB
	$(VENV)/bin/python -m pytest --durations 20 -m real tests

coverage: $(VENV)/.installed-test  ## which lines and branches the core's tests run (ARGS: other tests, like "-m ''" for all)
	rm -rf build/coverage && mkdir -p build/coverage
	$(VENV)/bin/coverage run -m pytest --quiet $(IN_PROCESSES) $(ARGS)
	$(VENV)/bin/coverage combine --quiet
	$(VENV)/bin/coverage report

mutants: $(VENV)/.installed-test  ## whether a test notices a changed decision (MODULES, WORKERS, SAMPLE, SURVIVORS)
	OMP_NUM_THREADS=1 $(VENV)/bin/python tests/helpers/mutants.py $(MODULES) --workers $(WORKERS) $(if $(SAMPLE),--sample $(SAMPLE)) \
		$(if $(SURVIVORS),--survivors)

# Faults of every kind, with other moments and values each time; writes the table that docs/tests.md shows.
chaos: $(VENV)/.installed-test  ## kills, faulty servers and hostile input, other ones each time (CHAOS_SECONDS)
	OMP_NUM_THREADS=1 $(VENV)/bin/python tests/helpers/chaos.py --seconds $(CHAOS_SECONDS)

# Needs Debian's radosgw, ceph-mon and ceph-osd, or rclone 1.65 or newer.
s3: $(VENV)/.installed-test  ## the tests of S3 against a real server (S3: ceph or rclone)
	OMP_NUM_THREADS=1 POSGAP_S3=$(S3) $(VENV)/bin/python -m pytest -m "" tests/storage/test_storage.py tests/storage/test_versions.py tests/storage/test_s3_*.py tests/distillation/test_s3_training.py \
		tests/tracking/test_server.py

frameworks: $(VENV)/.installed-test  ## what the pages say of LangChain, Haystack, Inspect and lm-eval, in those themselves
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --upgrade \
		--target build/frameworks langchain-core langchain-openai openai haystack-ai
	$(PYTHON) -m venv build/harnesses
	build/harnesses/bin/pip install --quiet --disable-pip-version-check -e '.[local,inspect]' pytest hypothesis 'gguf>=0.19,<0.20' lm_eval \
		$(if $(TORCH_INDEX_URL),--extra-index-url $(TORCH_INDEX_URL))
	build/harnesses/bin/python -m pytest -m '' tests/docs/test_harnesses.py
	HAYSTACK_TELEMETRY_ENABLED=False PYTHONPATH=build/frameworks $(VENV)/bin/python -m pytest -m '' tests/docs/test_frameworks.py tests/docs/test_applications.py

# What runs models is tested in the files that import one of these.
oldest newest: %: build/%/.installed  ## the tests of what runs models, with the oldest or newest torch and transformers allowed
	OMP_NUM_THREADS=1 build/$@/bin/python -m pytest $(IN_PROCESSES) -m 'not nightly and not real' \
		$$(grep -rlE '^ *(from|import) (torch|transformers|posgap\.models|posgap\.verbs\.sweep)\b' tests --include 'test_*.py')

# Environments where some packages, LOOSE, have other versions than constraints.txt says; all else is as elsewhere.
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
