"""`FILE_OR_MODULE:NAME`: what is found, and the error where nothing is found."""

import ast
import importlib.util
import subprocess
import sys

import pytest

from redrive.cli import targets
from redrive.cli.exit_codes import BrokenModule, TargetNotFound
from redrive.cli.targets import load
from tests.support.patterns import modules


@pytest.fixture
def write(here):
    def write(name, text):
        path = here / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    return write


def test_name_in_a_file_is_found(write):
    write("vendor.py", "def pipeline(records): return 'here'\n")
    assert load("vendor.py:pipeline")([]) == "here"
    assert load("./vendor.py:pipeline")([]) == "here"


def test_name_in_a_module_is_found_from_the_working_directory(write):
    write("jobs/__init__.py", "")
    write("jobs/vendor.py", "class Pipeline:\n    def reprocess(self, records): ...\npipeline = Pipeline()\n")
    assert load("jobs.vendor:pipeline").reprocess([]) is None
    assert load("jobs.vendor:pipeline.reprocess")([]) is None


def test_file_may_import_its_neighbours(write):
    write("elsewhere/shared.py", "VALUE = 3\n")
    write("elsewhere/vendor.py", "from shared import VALUE\n")
    assert load("elsewhere/vendor.py:VALUE") == 3


def test_file_of_a_package_may_import_its_siblings(write):
    write("jobs/__init__.py", "")
    write("jobs/shared.py", "VALUE = 4\n")
    write("jobs/vendor.py", "from .shared import VALUE\n")
    assert load("jobs/vendor.py:VALUE") == 4
    assert load("jobs.vendor:VALUE") == 4


def test_file_is_imported_once(write):
    write("vendor.py", "pipeline = object()\n")
    assert load("vendor.py:pipeline") is load("vendor.py:pipeline")


def test_file_named_like_a_stdlib_module_does_not_replace_it(write):
    import json

    write("json.py", "pipeline = 'mine'\n")
    assert load("json.py:pipeline") == "mine"
    assert sys.modules["json"] is json


def test_stdlib_module_is_imported_despite_a_file_of_its_name(write):
    write("sched.py", "import sched\npipeline = sched.scheduler\n")
    assert "sched" not in sys.modules
    assert load("sched.py:pipeline").__module__ == "sched"
    assert load("sched.py:pipeline") is sys.modules["redrive_target_sched"].pipeline


class TestFileNames:
    @pytest.mark.parametrize("name", ["orders.v2.py", "jobs/orders.v2.py"])
    def test_file_with_a_dot_in_its_name_is_loaded(self, write, name):
        write("jobs/__init__.py", "")
        write("jobs/shared.py", "VALUE = 5\n")
        write(name, "from jobs.shared import VALUE\npipeline = object()\n")
        assert load(f"{name}:VALUE") == 5
        assert load(f"{name}:pipeline") is load(f"{name}:pipeline")

    def test_file_with_a_dot_in_a_package_may_import_siblings(self, write):
        write("loads/__init__.py", "")
        write("loads/shared.py", "VALUE = 6\n")
        write("loads/orders.v2.py", "from .shared import VALUE\n")
        assert load("loads/orders.v2.py:VALUE") == 6

    @pytest.mark.process
    @pytest.mark.parametrize("name", ["polars", "duckdb", "redrive", "json"])
    def test_file_named_like_an_import_of_redrive_does_not_shadow(self, write, name):
        installed = importlib.util.find_spec(name).origin
        write(f"{name}.py", f"import {name}\npipeline = {name}.__file__\n")
        program = (
            f"import sys\nsys.path[:] = {[entry for entry in sys.path if entry]!r}\n"
            f"from redrive.cli.targets import load\nprint(load('{name}.py:pipeline'))\n"
            f"import {name}\nprint({name}.__file__)\n"
        )
        done = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True)
        assert done.stdout.splitlines() == [installed, installed]

    @pytest.mark.slow
    def test_every_import_of_redrive_is_known(self):
        imported = set()
        for _, path in modules():
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Import):
                    imported |= {alias.name.partition(".")[0] for alias in node.names}
                elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                    imported.add(node.module.partition(".")[0])
        assert imported - set(sys.stdlib_module_names) <= targets._IMPORTED


@pytest.mark.parametrize("wanted", ["vendor.py", "vendor", ":pipeline", "vendor.py:", "vendor.py:a b", "a:b/c.py"])
def test_invalid_target_is_rejected_with_the_two_forms(here, wanted):
    with pytest.raises(TargetNotFound, match=r"write FILE:NAME or MODULE:NAME, such as vendor.py:pipeline"):
        load(wanted)


def test_missing_file_suggests_a_similar_one(write):
    write("vendor.py", "")
    with pytest.raises(TargetNotFound, match=r"there is no file vendr.py; did you mean vendor.py\?"):
        load("vendr.py:pipeline")
    with pytest.raises(TargetNotFound, match=r"there is no file jobs/x.py: there is no directory jobs"):
        load("jobs/x.py:pipeline")


def test_missing_module_is_named(here):
    with pytest.raises(TargetNotFound, match="there is no module 'nowhere'"):
        load("nowhere:pipeline")
    with pytest.raises(TargetNotFound, match=r"there is no module 'nowhere.at.all'"):
        load("nowhere.at.all:pipeline")


def test_missing_name_suggests_a_similar_one(write):
    write("vendor.py", "def pipeline(records): ...\n")
    with pytest.raises(TargetNotFound, match=r"vendor.py has no name 'pipelin'; did you mean 'pipeline'\?"):
        load("vendor.py:pipelin")
    with pytest.raises(TargetNotFound, match=r"vendor.py has no name 'other'$"):
        load("vendor.py:other")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import re\n\nimport polarz\n", r"ModuleNotFoundError: No module named 'polarz' \(vendor.py, line 3\)"),
        ("def f():\n    return 1 / 0\nf()\n", r"ZeroDivisionError: division by zero \(vendor.py, line 2\)"),
        ("x = 1\nif x\n", r"SyntaxError: expected ':' \(vendor.py, line 2\)"),
        ("raise RuntimeError\n", r"RuntimeError \(vendor.py, line 1\)"),
        ("raise ValueError('password=hunter2')\n", r"ValueError: password=\*\*\* \(vendor.py, line 1\)"),
        ("import json\njson.loads('{')\n", r"JSONDecodeError: .* \(vendor.py, line 2\)"),
        ("import sys\nsys.exit(3)\n", r"SystemExit: it ends the program .* \(vendor.py, line 2\)"),
    ],
)
@pytest.mark.parametrize("wanted", ["vendor.py:pipeline", "vendor:pipeline"])
def test_error_in_a_module_is_reported_with_the_users_line(write, text, words, wanted):
    write("vendor.py", text)
    with pytest.raises(BrokenModule, match=f"^vendor(.py)? cannot be imported: {words}$"):
        load(wanted)


def test_failed_file_is_imported_again(write):
    write("vendor.py", "1 / 0\n")
    with pytest.raises(BrokenModule):
        load("vendor.py:pipeline")
    write("vendor.py", "pipeline = 'mended, and longer than before'\n")
    assert load("vendor.py:pipeline").startswith("mended")


def test_file_that_is_not_python_is_reported_as_broken(here):
    (here / "data.py").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BrokenModule, match=r"data.py cannot be imported: SyntaxError"):
        load("data.py:pipeline")
