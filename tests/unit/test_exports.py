"""The public names, and the cost of importing them."""

import subprocess
import sys
import types

import pytest

import redrive

PUBLIC = {
    "Branch",
    "Breaker",
    "CircuitOpen",
    "Classifier",
    "Discard",
    "Flow",
    "FlowError",
    "FlowReport",
    "FlowStopped",
    "Gate",
    "GateAborted",
    "KeyPool",
    "Kind",
    "Letter",
    "LetterError",
    "NewLetter",
    "Permanent",
    "Pipeline",
    "PipelineError",
    "PolicyWarning",
    "QuotaExhausted",
    "RateLimited",
    "RedriveError",
    "Reject",
    "ReplayStopped",
    "Report",
    "RetriesExhausted",
    "Retry",
    "RetryBudget",
    "RunStopped",
    "Schedule",
    "Service",
    "Skip",
    "SourceError",
    "Store",
    "StoreError",
    "TaskTimeout",
    "Timeout",
    "Token",
    "Transient",
    "Verdict",
    "classify",
    "connect",
    "on_event",
    "retry",
    "rows",
    "run_with_timeout",
}

HEAVY = ["httpx", "requests", "sqlalchemy", "polars", "pydantic", "asyncio", "logging", "email", "json", "dataclasses"]


def in_a_fresh_interpreter(program):
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_public_names_are_exactly_these():
    assert set(redrive.__all__) == PUBLIC
    assert redrive.__all__ == sorted(redrive.__all__)
    assert set(dir(redrive)) == PUBLIC | {"__version__"}


def test_each_public_name_exists_and_no_other():
    for name in PUBLIC - {"rows"}:
        assert not isinstance(getattr(redrive, name), types.ModuleType)
    with pytest.raises(AttributeError, match="Nonsense"):
        redrive.Nonsense  # noqa: B018


@pytest.mark.process
def test_classify_remains_the_function_after_import_of_package():
    program = "import redrive.classify.classifier, redrive; print(redrive.classify(TimeoutError()).kind)"
    assert in_a_fresh_interpreter(program) == ["transient"]


@pytest.mark.process
@pytest.mark.bare
def test_importing_redrive_imports_nothing_heavy():
    program = f"import sys, redrive; print(*[name for name in {HEAVY} if name in sys.modules])"
    assert in_a_fresh_interpreter(program) == []


@pytest.mark.process
@pytest.mark.bare
def test_running_service_imports_no_unimported_library():
    program = (
        "import sys, redrive\n"
        "service = redrive.Service('x', retry=redrive.Retry(attempts=2, base=0, cap=0))\n"
        "def fail(): raise ConnectionResetError\n"
        "try: service.call(fail)\n"
        "except ConnectionResetError: pass\n"
        "print(*[name for name in ('httpx', 'requests', 'sqlalchemy', 'polars', 'pydantic', 'asyncio', 'sqlite3')"
        " if name in sys.modules])"
    )
    assert in_a_fresh_interpreter(program) == []
