# Two commands for a newcomer: `make demo` and `make test`. Both set up .venv by themselves.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
BENCH_STAMP := $(VENV)/.installed-bench
WHAT ?= append
CHECK ?= $(QUICK)

BENCH := $(BIN)/python -m pytest -q -s -p no:cacheprovider --timeout=900 --benchmark-max-time=0.2 --benchmark-min-rounds=3
# The suites without a JVM or a PostgreSQL.
QUICK := codec append read growth group_commit memory local_peers object_peers object_stores recovery tracker upsert

.PHONY: setup demo test lint format soak fuzz bench bench-quick bench-check profile clean

setup: $(STAMP)

$(STAMP): pyproject.toml setup.py logstore/format/_speed.c
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[arrow,spark,broker,postgres,test]'
	touch $(STAMP)

$(BENCH_STAMP): $(STAMP)
	$(BIN)/python -m pip install --quiet --editable '.[bench]'
	touch $(BENCH_STAMP)

demo: $(STAMP)
	$(BIN)/logstore demo
	$(BIN)/python examples/orders_pipeline.py --batch

test: $(STAMP)
	$(BIN)/python -m pytest -q -m 'not soak' --numprocesses=2 --dist=loadgroup

# Long runs: more seeds, more kills, more connections.
soak: $(STAMP)
	$(BIN)/python -m pytest -q -m soak --timeout=3600

# The C kernels under AddressSanitizer.
fuzz: $(STAMP)
	$(BIN)/python tests/fuzz/fuzz_speed.py --seconds 60

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy --strict logstore broker_shim

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(BENCH_STAMP)
	$(BENCH) benchmarks
	$(BIN)/python -m benchmarks.report

bench-quick: $(BENCH_STAMP)
	BENCH_QUICK=1 $(BENCH) $(QUICK:%=benchmarks/test_%.py)

bench-check: $(STAMP)
	$(BIN)/python -m benchmarks.check $(CHECK)

profile: $(BENCH_STAMP)
	$(BIN)/python -m benchmarks.profile $(WHAT)

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
