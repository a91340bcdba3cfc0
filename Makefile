# Everything runs in .venv, made on first use; a change of constraints or pyproject makes it anew.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
WORKERS ?= $(shell cores=$$(getconf _NPROCESSORS_ONLN); echo $$((cores < 4 ? cores + 1 : 4)))

# Tests start Python hundreds of times: it is to find the modules compiled, whatever the shell says.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test lint bench chaos docs clean

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

demo: $(VENV)/.base
	$(BIN)/redrive demo

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# One process more than there are cores, for tests wait a lot; a file stays in one, for its tests share servers. The
# files in their order, which has the long ones first. WORKERS=0 runs in this process. Types are checked beside.
test: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@$(BIN)/mypy > $(VENV)/types.txt 2>&1 & types=$$!; \
	$(BIN)/python -m pytest -m "not chaos" --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder; tests=$$?; \
	wait $$types; types=$$?; cat $(VENV)/types.txt; exit $$((tests > types ? tests : types))

chaos: $(VENV)/.test
	$(BIN)/python -m pytest -m chaos --timeout 3600
	REDRIVE_EXPLORE=1 $(BIN)/python -m pytest tests/unit/policy tests/unit/test_masking.py tests/unit/classify/test_properties.py tests/unit/tasks/test_model.py tests/unit/tasks/test_storm.py tests/unit/tasks/test_decide.py tests/unit/test_config_lines.py tests/unit/alerts --timeout 3600

bench: $(VENV)/.bench
	$(BIN)/python bench

# The reference, from the code; then the site, into site/. What is silenced is an advertisement.
docs: $(VENV)/.docs
	$(BIN)/python docs/generate
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

clean:
	rm -rf $(VENV) build dist site redrive-demo .mypy_cache .ruff_cache .pytest_cache .hypothesis .redrive
