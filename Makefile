# `make` lists what there is. Every target that needs the environment makes .venv by itself, once: it is
# installed again only when pyproject.toml or constraints.txt changed, so all of this works offline afterwards.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
CHECK_STAMP := $(VENV)/.installed-for-checks
TEST_STAMP := $(VENV)/.installed-for-tests
SOAK_STAMP := $(VENV)/.installed-for-soak
COMPILED_STAMP := $(VENV)/.compiled
# The compiled wheel is installed here.
COMPILED := .venv-compiled
# Runs a command of .venv on what is installed there: no module of this folder comes before it.
ON_COMPILED = PYTHONSAFEPATH=1 PYTHONPATH="$$(echo $(CURDIR)/$(COMPILED)/lib/python3*/site-packages)"
SOAK_SECONDS ?= 300
# More than cores: tests with real servers wait now and then. More still would only import and collect more often.
WORKERS ?= 4
IN_PARALLEL = --numprocesses=$(WORKERS) --dist=loadgroup --no-loadscope-reorder
# What `make check` has mypy check, with a cache of its own: two sets of options throw away each other's.
CHECKED_TYPES := --cache-dir .mypy_cache/check --follow-imports=silent --exclude '/(spark|pipeline)/|/sweep' \
    alpo cli/alpo_cli sim/alpo_sim sim/alpo_elections
SIM_SECONDS ?= 600
EXPLORE_SECONDS ?= 300

# Tests and demos start hundreds of processes: none is to compile everything anew.
unexport PYTHONDONTWRITEBYTECODE

# $(call with_mypy,ARGUMENTS OF MYPY,ARGUMENTS OF PYTEST,BEFORE PYTEST): both at the same time, fails if one of them does.
# What mypy says comes last.
define with_mypy
@echo "mypy and, beside it, pytest $(2)"; \
said=$$(mktemp) || exit; \
$(BIN)/mypy $(1) > "$$said" 2>&1 & beside=$$!; \
trap 'rm -f "$$said"' EXIT; \
$(if $(3),{ $(3); } || true;) \
$(BIN)/python -m pytest $(2); pytest=$$?; \
wait $$beside; mypy=$$?; echo "mypy:"; cat "$$said"; \
test $$pytest -eq 0 || echo "pytest has failed" >&2; test $$mypy -eq 0 || echo "mypy has failed" >&2; \
test $$pytest -eq 0 && test $$mypy -eq 0
endef

.DEFAULT_GOAL := help
.PHONY: help venv lint check test demo demo-spark bench compiled soak-compiled soak sim-coverage screenshots release-notes release clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

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
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable . --constraint constraints.txt
	@touch $@

$(CHECK_STAMP): $(STAMP)
	@echo "installing what quick checks need ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[check]' --constraint constraints.txt
	@touch $@

$(TEST_STAMP): $(CHECK_STAMP)
	@echo "installing what the tests need (PySpark and a Java for it among that, 1 GB) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[test]' --constraint constraints.txt
	@touch $@

$(SOAK_STAMP): $(TEST_STAMP)
	@echo "installing what Spark Connect needs ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[soak]' --constraint constraints.txt
	@touch $@

lint: $(TEST_STAMP) ## ruff and mypy --strict
	$(BIN)/ruff check .
	$(BIN)/mypy

# The first collection writes what pytest makes of each test module; else every worker would make all of it.
test: $(TEST_STAMP) ## everything: ruff, mypy --strict, all tests but the slow kinds' matrices (make soak)
	$(BIN)/ruff check .
	$(call with_mypy,,$(IN_PARALLEL) --durations=25 --durations-min=2,test -d tests/__pycache__ || { echo "compiling the tests ..."; $(BIN)/python -m pytest --collect-only -qq > /dev/null 2>&1; })
	$(BIN)/python -m pytest -m alone --quiet --numprocesses=1 tests/cluster

check: WORKERS := 2
check: $(CHECK_STAMP) ## ruff, mypy of all but Spark's parts, the tests of core and wire: a minute, nothing of Spark installed
	$(BIN)/ruff check .
	$(call with_mypy,$(CHECKED_TYPES),--quiet $(IN_PARALLEL) tests/core tests/wire)

demo: $(STAMP) ## three servers, real input, the leader killed in the middle: nothing lost, nothing doubled
	$(BIN)/python -m alpo_cli.demo

demo-spark: $(TEST_STAMP) ## two logs and Spark between them, killed in the middle: exactly once; then archive, trim, audit
	$(BIN)/python examples/spark/demo.py

bench: $(TEST_STAMP) ## appends' speed and processor time beside the yardstick's, in the same run; BENCH="--peers …": see --help
	$(BIN)/python benchmarks/against_yardstick.py $(BENCH)

$(COMPILED_STAMP): $(CHECK_STAMP) hatch_build.py $(shell find alpo cli/alpo_cli cli/pyspark_alpo sim -name '*.py')
	@echo "installing what compiling needs, and compiling (minutes) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[compiled]' --constraint constraints.txt
	@rm -f dist/alpo-*-cp*.whl
	@ALPO_COMPILED=1 $(BIN)/python -m hatchling build -t wheel -d dist
	@test -x $(COMPILED)/bin/python || $(BIN)/python -m venv $(COMPILED)
	@$(COMPILED)/bin/python -m pip install --quiet --disable-pip-version-check dist/alpo-*-cp*.whl --constraint constraints.txt
	@$(COMPILED)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --force-reinstall dist/alpo-*-cp*.whl
	@touch $@

compiled: $(COMPILED_STAMP) ## a wheel with core and wire format as machine code, in dist/, and in .venv-compiled to try; needs a C compiler
	@ls dist/alpo-*-cp*.whl && $(COMPILED)/bin/alpo version

soak-compiled: $(TEST_STAMP) $(COMPILED_STAMP) ## tests, the demonstration and simulated traces on the compiled build
	test "$$($(ON_COMPILED) $(BIN)/alpod --version)" != "$$($(BIN)/alpod --version)"
	$(ON_COMPILED) $(BIN)/python -m pytest -m 'not soak and not alone and not pure' $(IN_PARALLEL) tests/core tests/wire tests/sim tests/node
	PYTHONSAFEPATH=1 $(COMPILED)/bin/python -m alpo_cli.demo tests/data/alice.txt
	rm -rf build/frozen && mkdir -p build/frozen
	$(BIN)/python benchmarks/frozen.py build/frozen/pure --only frames traces
	$(ON_COMPILED) $(BIN)/python benchmarks/frozen.py build/frozen/compiled --only frames traces
	diff -r build/frozen/pure build/frozen/compiled

soak: $(SOAK_STAMP) soak-compiled ## the slow tests, real processes under faults SOAK_SECONDS=300, fresh simulated seeds SIM_SECONDS=600, all states within bounds
	$(BIN)/python -m pytest -m soak $(IN_PARALLEL)
	HYPOTHESIS_PROFILE=thorough $(BIN)/python -m pytest $(IN_PARALLEL) tests/node/test_node_frames.py tests/wire
	$(BIN)/python tests/cluster/soak.py --seconds $(SOAK_SECONDS)
	$(BIN)/python tests/cluster/soak.py --seconds $(SOAK_SECONDS) --tls --logs 3
	$(BIN)/python tests/spark/sink_kills.py
	$(BIN)/python tests/spark/shipped.py
	$(BIN)/alpo-sim mutants
	$(BIN)/alpo-sim seeds --limit-s $(SIM_SECONDS)
	$(BIN)/alpo-sim explore --world all --limit-s $(EXPLORE_SECONDS)

sim-coverage: $(TEST_STAMP) ## how much of alpo/core the simulator alone runs
	$(BIN)/python benchmarks/simulated_coverage.py

screenshots: $(TEST_STAMP) ## pictures of the page for the docs; needs Chromium
	$(BIN)/python tests/docs/screenshots.py

release-notes: $(CHECK_STAMP) ## what the next release will add to CHANGELOG.md, from the files in changes/
	$(BIN)/towncrier build --draft

release: $(CHECK_STAMP) ## move the notes in changes/ into CHANGELOG.md, commit that, and tag it vX.Y.Z; publishes nothing
	@test -z "$$(git status --porcelain)" || { echo "commit first: a release is made of what is committed" >&2; exit 1; }
	@version=$$(sed -n 's/^__version__ = "\(.*\)"/\1/p' alpo/_version.py); \
	if git rev-parse --quiet --verify "refs/tags/v$$version" > /dev/null; then \
	    echo "v$$version is released: set the next version in alpo/_version.py" >&2; exit 1; fi; \
	if ls changes | grep -qvE '^(README|template)\.md$$'; then \
	    if grep -qxF "## $$version" CHANGELOG.md; then \
	        echo "CHANGELOG.md has $$version already: set the next version in alpo/_version.py" >&2; exit 1; fi; \
	    $(BIN)/towncrier build --yes --version "$$version" && git commit --quiet --message "Release $$version" || exit 1; fi; \
	grep -qxF "## $$version" CHANGELOG.md || { echo "CHANGELOG.md says nothing of $$version" >&2; exit 1; }; \
	git tag --annotate "v$$version" --message "ALPO $$version" && echo "tagged v$$version"

clean: ## remove .venv and whatever the tools left behind
	rm -rf $(VENV) $(COMPILED) build dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
