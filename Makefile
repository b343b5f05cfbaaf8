# make demo | test | env | bench     (see README.md and CONTRIBUTING.md)
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
CORES  := $(shell getconf _NPROCESSORS_ONLN)

.PHONY: env demo test bench
env: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "uv>=0.8"
	$(BIN)/uv pip install --python $(BIN)/python --compile-bytecode --editable ".[train,test]"
	touch $@

demo: env
	$(BIN)/lookalike demo $(DEMO_ARGS)

test: env
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/typos
	$(BIN)/mypy
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses $(CORES) --dist loadfile --no-loadscope-reorder $(TEST_ARGS)

bench: env
	$(BIN)/python -m benchmarks
