# make bench: set up .venv and run the benchmark; ARGS are overrides, such as ARGS="load.concurrency=8 logger=none"
# make test:  set up .venv with the development tools and run the tests; ARGS go to pytest
# make lint:  ruff and mypy
# make clients: run the clients that must work unchanged, each from an environment of its own, against a server
# make sglang-cpu: set up .venv-sglang (SGLANG_VENV) with SGLang on the CPU and the tests; on a GPU: pip install ".[sglang]"

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Modules are compiled when they are first imported: most never are, and compiling all takes a minute.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile
ARGS ?=
SGLANG_VENV ?= .venv-sglang
CLIENTS_VENV ?= .venv-clients
CLIENTS := openai lm-eval guidellm aiperf
SGLANG := tokenrouter/engine/sglang

.PHONY: bench test lint clients client-environments clean sglang-cpu

bench: $(VENV)/installed
	$(BIN)/python bench/run.py algo=r2r workload=aime $(ARGS)

test: $(VENV)/installed-dev
	$(BIN)/python -m pytest $(ARGS)

lint: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/mypy

sglang-cpu: $(SGLANG_VENV)/installed

client-environments: $(CLIENTS:%=$(CLIENTS_VENV)/%/installed)

clients: $(VENV)/installed-dev client-environments
	$(BIN)/python tests/clients/run.py $(CLIENTS_VENV) $(ARGS)

# Each in an environment of its own: what they need contradicts each other, and the server.
$(CLIENTS_VENV)/%/installed: tests/clients/%.txt
	@echo "Installing $* into $(@D)"
	@$(PYTHON) -m venv $(@D)
	@$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --no-compile -r $<
	@touch $@

clean:
	rm -rf $(VENV) $(SGLANG_VENV) $(CLIENTS_VENV) build *.egg-info

# The stamps: nothing is installed again until pyproject.toml changes.
$(VENV)/installed: pyproject.toml | $(BIN)/python
	@echo "Installing into $(VENV) (some minutes)"
	@$(PIP) -e .
	@touch $@

$(VENV)/installed-dev: pyproject.toml | $(BIN)/python
	@echo "Installing into $(VENV), with the development tools (some minutes)"
	@$(PIP) -e ".[dev]"
	@touch $@ $(VENV)/installed

# Its own environment: SGLang pins a transformers of its own.
$(SGLANG_VENV)/installed: PIP := $(SGLANG_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-compile
$(SGLANG_VENV)/installed: pyproject.toml $(SGLANG)/requirements-cpu.txt $(SGLANG)/requirements-cpu-nodeps.txt $(SGLANG)/stand_ins.py
	@echo "Installing into $(SGLANG_VENV) (some minutes)"
	@$(PYTHON) -m venv $(SGLANG_VENV)
	@$(PIP) -e ".[dev]" -r $(SGLANG)/requirements-cpu.txt
	@$(PIP) --no-deps -r $(SGLANG)/requirements-cpu-nodeps.txt
	@packages=$$($(SGLANG_VENV)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))') && \
		cp $(SGLANG)/stand_ins.py "$$packages/sglang_stand_ins.py" && \
		echo "import sglang_stand_ins; sglang_stand_ins.install()" > "$$packages/sglang_stand_ins.pth"
	@touch $@

$(BIN)/python:
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit("Python 3.11 or newer is needed; $(PYTHON) is %d.%d (another one: make PYTHON=python3.12 ...)" % v if v < (3, 11) else 0)'
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }
