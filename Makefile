# Everything runs in .venv, created on first use; a change of constraints or pyproject updates it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
CORES := $(shell getconf _NPROCESSORS_ONLN)
# More processes than cores, because tests wait a lot. WORKERS=0 runs everything in one process.
WORKERS ?= $(shell echo $$(($(CORES) < 4 ? $(CORES) + 2 : 5)))
# A file stays in one process, because its tests share servers; the long ones come first (tests/conftest.py).
PARALLEL := --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder
PYTEST := $(BIN)/python -m pytest $(PARALLEL)
COVERAGE := $(CURDIR)/$(VENV)/coverage

# Tests start Python often: it must find the modules compiled, whatever the shell sets.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo lint types unit test test-changed test-coverage packs mutants chaos bench docs clean

help:  ## List the targets.
	@sed -n 's/^\([a-z-]*\):.*## /\1|/p' $(MAKEFILE_LIST) | awk -F'|' '{ printf "  make %-14s %s\n", $$1, $$2 }'

$(VENV)/.base: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --constraint constraints.txt --editable ".[all]"
	touch $@

$(VENV)/.test: $(VENV)/.base
	$(PIP) install --constraint constraints.txt --editable ".[test]"
	touch $@

$(VENV)/.bench: $(VENV)/.base
	$(PIP) install --constraint constraints.txt --editable ".[bench]"
	touch $@

$(VENV)/.docs: $(VENV)/.base
	$(PIP) install --constraint constraints.txt --editable ".[docs]"
	touch $@

demo: $(VENV)/.base  ## Play the demo: an API, a vendor file and a settlement on a bad day.
	$(BIN)/redrive demo

lint: $(VENV)/.test  ## Check style, vocabulary and types.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m tests.support.word_list
	$(BIN)/mypy

unit: $(VENV)/.test  ## Run the pure and in-process tests: under a minute.
	REDRIVE_TEST_LOOP=unit $(PYTEST) --numprocesses $$(($(CORES) + 1)) -m "not chaos and not process and not slow" tests/unit

test: $(VENV)/.test  ## Run everything: style, vocabulary, types and all tests, real servers included.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m tests.support.word_list
	@$(BIN)/mypy > $(VENV)/types.txt 2>&1 & types=$$!; \
	$(PYTEST) -m "not chaos"; tests=$$?; \
	wait $$types; types=$$?; cat $(VENV)/types.txt; exit $$((tests > types ? tests : types))

test-changed: $(VENV)/.test  ## Run the tests that the uncommitted change can affect; BASE=REV compares with REV.
	@files=$$($(BIN)/python -m tests.support.changed $(if $(BASE),--base $(BASE))) || exit $$?; \
	if [ -z "$$files" ]; then echo "no test depends on the change"; else $(PYTEST) -m "not chaos" $$files; fi

test-coverage: $(VENV)/.test  ## Run all tests under coverage; print lines and branches per package.
	rm -rf $(COVERAGE) && mkdir -p $(COVERAGE)
	COVERAGE_FILE=$(COVERAGE)/data $(BIN)/coverage run -m pytest $(PARALLEL) -m "not chaos and not bare" --timeout 900
	COVERAGE_FILE=$(COVERAGE)/data $(BIN)/coverage combine --quiet
	COVERAGE_FILE=$(COVERAGE)/data $(BIN)/python -m tests.support.coverage_report

# The clients whose errors are tested, far more than redrive needs; niquests replaces urllib3, so it is alone.
PACKS := $(VENV)/packs
$(PACKS)/%/.ready: tests/packs/%.txt tests/packs/constraints.txt pyproject.toml
	$(PYTHON) -m venv $(PACKS)/$*
	$(PACKS)/$*/bin/python -m pip --quiet --disable-pip-version-check install \
	    --constraint tests/packs/constraints.txt --requirement $< --editable .
	touch $@

packs: $(PACKS)/all/.ready $(PACKS)/alone/.ready  ## Test the verdicts on the errors of every client library.
	REDRIVE_PACKS=all $(PACKS)/all/bin/python -m pytest --noconftest --timeout 900 tests/packs
	REDRIVE_PACKS=alone $(PACKS)/alone/bin/python -m pytest --noconftest tests/packs

mutants: $(VENV)/.test  ## Change the code in 240 places and count the tests that notice; needs test-coverage first.
	$(BIN)/python -m tests.support.mutants --coverage $(COVERAGE)/data

chaos: $(VENV)/.test  ## Run the fault suites at full count, and property tests with new examples.
	REDRIVE_TEST_LOOP=chaos $(BIN)/python -m pytest -m chaos --timeout 3600
	REDRIVE_TEST_LOOP=chaos $(BIN)/python -m pytest --timeout 3600 tests/unit/policy tests/unit/test_masking.py \
	    tests/unit/test_masking_cuts.py \
	    tests/unit/classify/test_properties.py tests/unit/tasks/test_model.py tests/unit/tasks/test_sibling_limiter.py \
	    tests/unit/tasks/test_decide.py tests/unit/test_config_lines.py tests/unit/alerts \
	    tests/contract/test_append.py tests/contract/test_causes.py tests/contract/test_key_spellings.py \
	    tests/contract/test_resolved_alerts.py tests/contract/test_resumed_runs.py tests/contract/test_shared_causes.py \
	    tests/contract/test_sink_modes.py tests/contract/test_sinks.py tests/contract/test_stopped_loads.py

bench: $(VENV)/.bench  ## Run every benchmark beside its peers, and write the record.
	$(BIN)/python bench

# What is silenced is an advertisement.
docs: $(VENV)/.docs  ## Write the reference from the code, and build the site into site/.
	$(BIN)/python docs/generate
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

clean:  ## Remove everything that was built or installed.
	rm -rf $(VENV) build dist site redrive-demo .mypy_cache .ruff_cache .pytest_cache .hypothesis .redrive
