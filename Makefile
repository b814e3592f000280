# Two commands for a newcomer: `make demo` and `make test`. Both set up .venv by themselves.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: setup demo test lint format soak fuzz clean

setup: $(STAMP)

$(STAMP): pyproject.toml setup.py logstore/format/_speed.c
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[arrow,spark,broker,postgres,test]'
	touch $(STAMP)

demo: $(STAMP)
	$(BIN)/logstore demo

test: $(STAMP)
	$(BIN)/python -m pytest -q -m 'not soak'

soak: $(STAMP)
	$(BIN)/python -m pytest -q -m soak --timeout=3600

fuzz: $(STAMP)
	$(BIN)/python tests/fuzz/fuzz_speed.py --seconds 60

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy --strict logstore broker_shim

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
