# make bench: set up .venv and run the benchmark; ARGS are overrides, such as ARGS="load.concurrency=8 logger=none"
# make test:  set up .venv with the development tools and run the tests; ARGS go to pytest
# make lint:  ruff and mypy

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Modules are compiled when they are first imported: most never are, and compiling all takes a minute.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile
ARGS ?=

.PHONY: bench test lint clean

bench: $(VENV)/installed
	$(BIN)/python bench/run.py algo=r2r workload=aime $(ARGS)

test: $(VENV)/installed-dev
	$(BIN)/python -m pytest $(ARGS)

lint: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/mypy

clean:
	rm -rf $(VENV) build *.egg-info

# The stamps: nothing is installed again until pyproject.toml changes.
$(VENV)/installed: pyproject.toml | $(BIN)/python
	@echo "Installing into $(VENV) (some minutes)"
	@$(PIP) -e .
	@touch $@

$(VENV)/installed-dev: pyproject.toml | $(BIN)/python
	@echo "Installing into $(VENV), with the development tools (some minutes)"
	@$(PIP) -e ".[dev]"
	@touch $@ $(VENV)/installed

$(BIN)/python:
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit("Python 3.11 or newer is needed; $(PYTHON) is %d.%d (another one: make PYTHON=python3.12 ...)" % v if v < (3, 11) else 0)'
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }
