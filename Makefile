# Two commands for a newcomer: `make demo` and `make test`. Both set up .venv by themselves.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
BENCH_STAMP := $(VENV)/.installed-bench
WHAT ?= append

# The suites without a JVM or a PostgreSQL: what bench-quick and bench-check run.
QUICK_SUITES := $(filter-out benchmarks/test_spark.py benchmarks/test_ingest.py benchmarks/test_broker.py \
	benchmarks/test_growth.py benchmarks/test_memory.py,$(sort $(wildcard benchmarks/test_*.py)))

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
	$(BIN)/python -m pytest -q -s --timeout=900 benchmarks
	$(BIN)/python -m benchmarks.report

bench-quick: $(BENCH_STAMP)
	BENCH_QUICK=1 $(BIN)/python -m pytest -q -s --timeout=300 $(QUICK_SUITES)

bench-check: bench-quick
	$(BIN)/python -m benchmarks.check

profile: $(BENCH_STAMP)
	$(BIN)/python -m benchmarks.profile $(WHAT)

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
