# Everything runs in .venv, made on first use; a change of constraints or pyproject makes it anew.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
WORKERS ?= logical

# Tests start Python hundreds of times: it is to find the modules compiled, whatever the shell says.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test lint bench chaos clean

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

demo: $(VENV)/.base
	$(BIN)/python examples/partner_pages.py
	$(BIN)/python examples/vendor_file.py
	$(BIN)/python examples/partner_api.py
	$(BIN)/python examples/settlement.py

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# As many processes as there are cores; a file stays in one, for its tests share servers. WORKERS=0 runs in this one.
test: lint
	$(BIN)/python -m pytest -m "not chaos" --numprocesses $(WORKERS) --maxprocesses 4 --dist loadfile

chaos: $(VENV)/.test
	$(BIN)/python -m pytest -m chaos --timeout 3600
	REDRIVE_EXPLORE=1 $(BIN)/python -m pytest tests/unit/policy tests/unit/test_masking.py tests/unit/classify/test_properties.py tests/unit/tasks/test_model.py tests/unit/tasks/test_storm.py tests/unit/tasks/test_decide.py tests/unit/test_config_lines.py tests/unit/alerts --timeout 3600

bench: $(VENV)/.bench
	$(BIN)/python bench/calls.py
	$(BIN)/python bench/outage.py
	$(BIN)/python bench/letters.py
	$(BIN)/python bench/rows.py
	$(BIN)/python bench/tasks.py
	$(BIN)/python bench/task_hangs.py
	$(BIN)/python bench/week.py

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .redrive
