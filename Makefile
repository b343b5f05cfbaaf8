# make demo | test | quick | env [GPU=1] | docs | lock | test-lowest | bench | crash | gpu-check | experiments     (see README.md and CONTRIBUTING.md)
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# Pair of FAISS and ONNX Runtime, an extra of pyproject.toml. `make env` installs that of CPUs, `make env GPU=1` that of
# NVIDIA GPUs, in place of the other; the other targets keep the one that is installed.
READY  := $(patsubst $(VENV)/.ready-%,%,$(firstword $(wildcard $(VENV)/.ready-*)))
PAIR   := $(if $(filter 1,$(GPU)),gpu,$(if $(filter env,$(MAKECMDGOALS)),cpu,$(or $(READY),cpu)))
BOTH   := faiss-cpu faiss-gpu faiss-gpu-cuvs onnxruntime onnxruntime-gpu
# One more than there are cores, since tests often wait for servers and browsers.
WORKERS := $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)

# Rooms whose tests take about a minute together, on two cores.
QUICK  := tests/test_architecture.py tests/test_docs.py tests/test_examples.py tests/e2e/test_site.py \
          $(addprefix tests/retrieval/,images metrics storage) $(addprefix tests/train/,data input models) \
          $(addprefix tests/serve/,core http)
# Tests start hundreds of processes, which would compile our modules each time if byte code were not kept.
PYTEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder

# Pinned versions with hashes, for every platform and Python; the comments name no address of an index.
LOCK   := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header \
          --no-annotate --upgrade pyproject.toml

.PHONY: env demo test quick lint types docs lock test-lowest bench crash gpu-check experiments
env: $(VENV)/.ready-$(PAIR)

# The pairs have the same files, so both go before one comes.
$(VENV)/.ready-%: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "uv>=0.8"
	rm -f $(VENV)/.ready*
	$(BIN)/uv pip uninstall --quiet --python $(BIN)/python $(BOTH)
	$(BIN)/uv pip install --python $(BIN)/python --compile-bytecode --editable ".[train,test,$*]"
	touch $@

demo: env
	$(BIN)/lookalike demo $(DEMO_ARGS)

lint: env
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/typos
	$(BIN)/mypy
	@$(MAKE) --no-print-directory types

# The types of the page's scripts, which their comments declare. It needs Node.js and, the first time, the npm registry.
TSC := npx --yes --package typescript@7.0.2 -- tsc
types:
	@if ! command -v npx >/dev/null; then echo "types of the page's scripts: not checked, since there is no Node.js"; \
	elif ! timeout 120 $(TSC) --version >/dev/null 2>&1; then echo "types of the page's scripts: not checked, since npx has no TypeScript"; \
	else $(TSC) --project serve/page/jsconfig.json && echo "types of the page's scripts: checked"; fi

test: lint
	$(PYTEST) $(TEST_ARGS)

quick: lint
	$(PYTEST) -m "not slow and not browser" $(QUICK)

# The documentation as a site, build/docs/html/index.html.
docs: env
	$(BIN)/python docs/site build/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --config-file build/docs/mkdocs.yml

lock: env
	$(LOCK) --extra cpu --output-file requirements/search.txt
	$(LOCK) --extra cpu --extra standard --output-file requirements/standard.txt
	$(LOCK) --extra cpu --extra train --extra test --output-file requirements/dev.txt

# Without the instructions that only newer x86-64 have (AVX-512): others add in another order, so that a test which asks two
# ways of computing for equal floats fails. ONNX Runtime has no such setting; the last names are those of NumPy below 2.4.
PLAIN_CPU := ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 FAISS_SIMD_LEVEL=AVX2 OPENBLAS_CORETYPE=Haswell \
             NPY_DISABLE_CPU_FEATURES="X86_V4 AVX512_ICL AVX512_SPR AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL"

# The oldest direct dependencies that pyproject.toml allows, in an environment of their own, on a plain processor.
test-lowest: env
	$(BIN)/uv venv --quiet --clear --seed --python $(BIN)/python $(VENV)-lowest
	$(BIN)/uv pip install --quiet --python $(VENV)-lowest/bin/python --resolution lowest-direct --editable ".[cpu,train,test]"
	OMP_NUM_THREADS=1 $(PLAIN_CPU) $(VENV)-lowest/bin/python -m pytest -m "not slow and not browser" $(TEST_ARGS)

# WRITE=1 also writes benchmarks/results.json and docs/benchmarks.md.
bench: env
	$(BIN)/python -m benchmarks $(if $(filter 1,$(WRITE)),--write)

# make crash [MINUTES=60]: commands that are killed at any point; goes on where it ended. WRITE=1 also writes docs/reliability.md.
crash: env
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.crash --out build/crash --minutes $(or $(MINUTES),60) $(if $(filter 1,$(WRITE)),--write)

# Needs an NVIDIA GPU. WRITE=1 also puts the table into docs/gpu.md.
gpu-check: env
	$(BIN)/python -m benchmarks.gpu_check $(if $(filter 1,$(WRITE)),--write)

# make experiments DATA=FOLDER OUT=FOLDER [TABLES="raw loop"]: run or resume the tables, then rewrite docs/experiments.md
experiments: env
	$(BIN)/python -m benchmarks.experiments run $(TABLES) --data $(DATA) --out $(OUT)
	$(BIN)/python -m benchmarks.experiments report $(TABLES) --data $(DATA) --out $(OUT)
	$(BIN)/python -m benchmarks.experiments page
