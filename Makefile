# Two commands for a newcomer: `make demo` and `make test`. Both set up .venv by themselves.
# With another Python: `make test PYTHON=python3.13 VENV=.venv-3.13`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# setuptools warns of every editable install whose packages lie at the top of the checkout.
PIP := PYTHONWARNINGS=ignore $(BIN)/python -m pip install --quiet
CORE_STAMP := $(VENV)/.installed-core
STAMP := $(VENV)/.installed
BENCH_STAMP := $(VENV)/.installed-bench
DOCS_STAMP := $(VENV)/.installed-docs
WHAT ?= append
CHECK ?= $(QUICK)
STEPS ?= 1000000
# Spark releases beside the one in .venv, and the tests that show what a release can do.
SPARK_VERSIONS ?= 4.0.5 4.1.4 4.2.1
SPARK_TESTS := $(addprefix tests/spark/,read/test_spark_batch.py write/test_spark_stream.py test_credentials.py \
    read/test_worker_memory.py test_docs.py test_example.py test_union.py)
COVERING := $(addprefix tests/,aio api engine format layout process upsert)

BENCH := $(BIN)/python -m pytest -q -s -p no:cacheprovider --timeout=900 --benchmark-max-time=0.2 --benchmark-min-rounds=3
# The suites without a JVM or a PostgreSQL.
QUICK := codec append read growth compaction group_commit lanes memory local_peers object_peers object_stores recovery tracker upsert

.PHONY: setup demo test test-again coverage lint format soak simulate spark-versions compat fuzz docs docs-serve wheel bench bench-quick bench-loaded bench-check profile clean

setup: $(STAMP)

# The library alone: quick, and all that `logstore demo` needs.
$(CORE_STAMP): pyproject.toml setup.py logstore/format/_speed.c
	$(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade pip
	$(PIP) --editable .
	@$(BIN)/logstore --version
	@touch $(CORE_STAMP)

# Spark looks for its sources in folders, and an editable install is none: the .pth file names this one.
$(STAMP): $(CORE_STAMP)
	@echo 'Installing Spark, Kafka clients and test tools into $(VENV): 1.5 GB, some minutes, once.'
	$(PIP) --editable '.[arrow,lake,metrics,spark,broker,postgres,test]'
	@echo '$(CURDIR)' > "$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/logstore-checkout.pth"
	@touch $(STAMP)

$(BENCH_STAMP): $(STAMP)
	$(PIP) --editable '.[bench]'
	touch $(BENCH_STAMP)

$(DOCS_STAMP): $(CORE_STAMP)
	$(PIP) --editable '.[docs]'
	@touch $(DOCS_STAMP)

demo: $(CORE_STAMP)
	$(BIN)/logstore demo
	@$(MAKE) --no-print-directory setup
	$(BIN)/python examples/orders_pipeline.py --batch

# Three workers for two cores: tests with servers, clients and disks wait most of their time.
test: $(STAMP)
	$(BIN)/python -m pytest -q -m 'not soak' --numprocesses=3 --dist=loadscope

# What failed in the last `make test`, without a second test beside it. More than five failures are no accident.
test-again: $(STAMP)
	@$(BIN)/python -m tests.support.last_failed --most 5
	$(BIN)/python -m pytest -q -m 'not soak' --last-failed --last-failed-no-failures=none

# Lines and branches of the engine and the formats, by the tests that are theirs. Below 95 % it fails. Without our own plug-in,
# which would import them before anything is measured.
coverage: $(STAMP)
	$(BIN)/python -m pytest -q -m 'not soak' --numprocesses=2 --dist=loadscope -p no:logstore.testing.pytest_plugin --cov --cov-fail-under=95 $(COVERING)

# Long runs: more seeds, more kills, more connections; 500 crashes of real processes on three kinds of store (SOAK_SEED=n).
soak: $(STAMP)
	$(BIN)/python -m pytest -q -m soak --timeout=3600

# A million requests of many processes with clocks of their own; a violation prints its seed, and the command that replays
# it. Then the schedulers and the model: every interleaving, thousands of random ones, a state machine for long.
simulate: $(STAMP)
	$(BIN)/python -m tests.simulation --total $(STEPS)
	$(BIN)/python -m pytest -q -m soak --timeout=3600 tests/engine tests/model

# Each release lies in a folder of its own, half a GB, which is put before .venv on the path. A test that runs into its timeout
# leaves a JVM that answers the next ones with other calls' results, so on a busy machine it is better to wait. Then union reads
# by the jars of Delta and Iceberg, which come from Maven Central: what has none for a release is skipped, and said.
spark-versions: $(SPARK_VERSIONS:%=.spark/%/.installed)
	@set -e; for version in $(SPARK_VERSIONS); do echo "Spark $$version"; \
	    PYTHONPATH="$(CURDIR)/.spark/$$version" $(BIN)/python -m pytest -q -m 'not soak' --timeout=1800 $(SPARK_TESTS); \
	    PYTHONPATH="$(CURDIR)/.spark/$$version" $(BIN)/python -m pytest -q -rs tests/spark/test_jars.py; done

.spark/%/.installed: | $(STAMP)
	$(PIP) --upgrade --target .spark/$* pyspark==$*
	@touch $@

# Clients of others against a broker of ours: Java, Streams, Connect, Spark's Kafka connector, Node, Quix Streams, Faust,
# bytewax, FastStream. Needs npm and Maven for some, and skips what it cannot install. `make compat CLIENTS="java connect"`.
compat: $(STAMP)
	$(BIN)/python -m tests.compat $(CLIENTS)

# The C kernels under AddressSanitizer.
fuzz: $(STAMP)
	$(BIN)/python tests/fuzz/fuzz_speed.py --seconds 60

# The site, in site/. A link that leads nowhere, or a page that is in no menu, ends it.
docs: $(DOCS_STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo 'site/index.html'

docs-serve: $(DOCS_STAMP)
	$(BIN)/mkdocs serve --strict

# A wheel with the C kernels for this Python and platform, in dist/.
wheel: $(CORE_STAMP)
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy --strict logstore broker_shim tests benchmarks

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(BENCH_STAMP)
	$(BENCH) benchmarks
	$(BIN)/python -m benchmarks.report

bench-quick: $(BENCH_STAMP)
	BENCH_EDITION=quick $(BENCH) $(QUICK:%=benchmarks/test_%.py)

# The same with all cores busy: do the ratios still say the same?
bench-loaded: $(BENCH_STAMP)
	BENCH_EDITION=loaded $(BENCH) benchmarks
	$(BIN)/python -m benchmarks.report

bench-check: $(STAMP)
	$(BIN)/python -m benchmarks.check $(CHECK)

profile: $(BENCH_STAMP)
	$(BIN)/python -m benchmarks.profile $(WHAT)

clean:
	rm -rf $(VENV) .spark .compat build dist site *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage*
