# `make` lists what there is. Every target that needs the environment makes .venv by itself, once: it is
# installed again only when pyproject.toml or constraints.txt changed, so all of this works offline afterwards.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
SOAK_SECONDS ?= 300

.DEFAULT_GOAL := help
.PHONY: help venv lint test demo bench soak clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-6s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

venv: $(STAMP) ## make .venv and install into it, if anything changed

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	    echo "ALPO needs Python 3.11 or newer; '$(PYTHON)' is missing or older. Say which to use: make PYTHON=/path/to/python3.12" >&2; \
	    exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	    echo "'$(PYTHON)' cannot make virtual environments: its venv module is missing (on Debian and Ubuntu: the package python3-venv)." >&2; \
	    exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[test]' --constraint constraints.txt
	@touch $@

lint: $(STAMP) ## ruff and mypy --strict
	$(BIN)/ruff check .
	$(BIN)/mypy

test: lint ## everything: lint, then all tests (the slowest are listed at the end)
	$(BIN)/python -m pytest --durations=15 --durations-min=1

demo: $(STAMP) ## three servers, real input, the leader killed in the middle: nothing lost, nothing doubled
	$(BIN)/python -m alpo_cli.demo

bench: $(STAMP) ## the speed of appends beside the yardstick's, in the same run
	$(BIN)/python benchmarks/against_yardstick.py

soak: $(STAMP) ## real processes under random faults, SOAK_SECONDS=300
	$(BIN)/python tests/cluster/soak.py --seconds $(SOAK_SECONDS)

clean: ## remove .venv and whatever the tools left behind
	rm -rf $(VENV) build dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
