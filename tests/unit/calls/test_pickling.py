"""Services and their functions sent to other processes by cloudpickle and joblib."""

import pickle
import subprocess
import sys

import cloudpickle
import pytest

import redrive
from redrive import Breaker, KeyPool, Retry, Service

# As from a notebook: everything in it is pickled by value.
PROGRAM = """
import asyncio, sys
import cloudpickle, requests, redrive

service = redrive.Service(
    "bank",
    credentials=redrive.KeyPool(["key-1111", "key-2222"]),
    retry=redrive.Retry(attempts=2, base=0.001, cap=0.001),
    breaker=redrive.Breaker(failures=2),
    classifier=redrive.Classifier().rule(KeyError, kind="transient"),
    fallback=lambda *_, **__: "fallback",
)
failures = []

@service
def decorated(value, *, credential=""):
    if not failures:
        failures.append(1)
        raise KeyError
    return value, credential

@service
async def coroutine(value):
    return value

@redrive.retry(attempts=2)
def retried(value):
    return value

def uses_a_global(value):
    return service.call(len, value)

class Client:
    def __init__(self):
        self.service = service
    def length(self, value):
        return self.service.call(len, value)

session = requests.Session()
session.mount("https://", service.requests_adapter())

def work():
    assert decorated(1) == (1, "key-1111")
    assert asyncio.run(coroutine(2)) == 2
    assert retried(3) == 3
    assert uses_a_global("four") == 4
    assert Client().length("five5") == 5
    assert session.get_adapter("https://bank.example")._runner.core is service.core
    return service.stats().calls, service.circuit
"""


def run(program):
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


@pytest.mark.process
def test_functions_of_a_notebook_run_in_another_process():
    sender = f"{PROGRAM}\nservice.call(len, 'x')\nsys.stdout.write(cloudpickle.dumps(work).hex())"
    receiver = "import sys, cloudpickle; print(cloudpickle.loads(bytes.fromhex({!r}))())"
    assert (
        run(receiver.format(run(sender))) == "(4, <CircuitState.CLOSED: 'closed'>)\n"
    )  # fresh counts, nothing of the sender's


@pytest.mark.process
def test_joblib_runs_guarded_functions(tmp_path):
    program = tmp_path / "program.py"
    last = (
        "if __name__ == '__main__':\n    import joblib\n    print(joblib.Parallel(n_jobs=2)([joblib.delayed(work)()]))"
    )
    program.write_text(f"{PROGRAM}\n{last}")
    done = subprocess.run([sys.executable, program], capture_output=True, timeout=120, check=False)
    assert done.stdout.decode() == "[(4, <CircuitState.CLOSED: 'closed'>)]\n", done.stderr.decode()


@pytest.mark.process
def test_tasks_of_one_process_share_a_received_service():
    sender = (
        "import sys, cloudpickle, redrive\n"
        "service = redrive.Service('bank', breaker=redrive.Breaker(failures=1), retry=None)\n"
        "def fail(): raise ConnectionResetError\n"
        "def task(): service.call(fail)\n"
        "sys.stdout.write(cloudpickle.dumps(task).hex())"
    )
    receiver = (
        "import cloudpickle, gc\n"
        "for _ in range(2):\n"
        "    try: cloudpickle.loads(bytes.fromhex({!r}))()\n"
        "    except Exception as error: print(type(error).__name__)\n"
        "    gc.collect()"
    )
    assert run(receiver.format(run(sender))).split() == ["ConnectionResetError", "CircuitOpen"]


def test_unpickled_in_its_own_process_is_the_same_service(flaky):
    service = Service("bank", breaker=Breaker(failures=1), retry=None)
    same = pickle.loads(pickle.dumps(service))
    with pytest.raises(ConnectionResetError):
        service.call(flaky(ConnectionResetError()))
    assert same.circuit == "open"
    assert (same.name, same.retry, same.breaker, same.budget) == (
        "bank",
        service.retry,
        service.breaker,
        service.budget,
    )


def test_view_keeps_its_options():
    view = Service("bank").with_options(fallback=None, endpoint="balance")
    assert pickle.loads(pickle.dumps(view)).options == view.options


def test_service_with_a_store_explains_why_it_cannot_be_sent(tmp_path):
    with redrive.connect(tmp_path / "redrive.db") as store:
        service = Service("bank", store=store)
        with pytest.raises(TypeError, match=r"it has a store, which stays in its process\. Make the"):
            cloudpickle.dumps(service)


def test_pickle_of_a_service_holds_its_policy():
    pool = KeyPool(["key-1111"], resets="00:00 America/Los_Angeles")
    options = Service("bank", retry=Retry(attempts=3), credentials=pool).core.remake[1]
    copied = pickle.loads(pickle.dumps(options))
    assert copied["retry"] == Retry(attempts=3)
    assert copied["credentials"].keys == pool.keys
