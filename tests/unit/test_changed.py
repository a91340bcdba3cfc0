"""Selection of the tests that a change can affect, on small made-up trees and on this one."""

import subprocess
from fnmatch import fnmatchcase

import pytest

from tests.support.changed import DYNAMIC, ROOT, WHOLE, Graph, changed_files, file_of, main, module_of, walk

LAZY = """
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    from redrive import rows
    from redrive.policy.retry import Retry
    from redrive.store import Store
def __getattr__(name): ...
"""
TREE = {
    "src/redrive/__init__.py": LAZY,
    "src/redrive/policy/__init__.py": "",
    "src/redrive/policy/backoff.py": "",
    "src/redrive/policy/retry.py": "def wait():\n    from redrive.policy import backoff\n",
    "src/redrive/store.py": "",
    "tests/unit/test_backoff.py": "from redrive.policy.backoff import delay\n",
    "tests/unit/test_retry.py": "from redrive.policy import retry\n",
    "tests/unit/test_store.py": "import redrive\nredrive.Store()\n",
}


def write(root, files):
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)


@pytest.fixture
def select(tmp_path):
    """Select by a change in a small tree; other files may be added to it."""

    def select(*changed, **texts):
        files = {path.replace("__", "/") + ".py": text for path, text in texts.items()}
        write(tmp_path, TREE | files)
        return [path.removeprefix("tests/") for path in Graph(tmp_path, changed).select(changed)]

    return select


@pytest.fixture(scope="module")
def real():
    return Graph(ROOT)


class TestImports:
    def test_changed_module_selects_its_importers(self, select):
        assert select("src/redrive/policy/backoff.py") == ["unit/test_backoff.py", "unit/test_retry.py"]

    def test_changed_package_selects_importers_of_its_modules(self, select):
        assert select("src/redrive/policy/__init__.py") == ["unit/test_backoff.py", "unit/test_retry.py"]

    def test_lazy_name_selects_by_the_module_that_defines_it(self, select):
        assert select("src/redrive/store.py") == ["unit/test_store.py"]

    def test_lazy_name_from_import_selects_the_same(self, select):
        texts = {"tests__unit__test_names": "from redrive import Store as S\n"}
        assert select("src/redrive/store.py", **texts) == ["unit/test_names.py", "unit/test_store.py"]

    def test_lazy_name_in_a_program_text_is_a_dependency(self, select):
        texts = {"tests__unit__test_text": "PROGRAM = 'import redrive; redrive.Retry()'\n"}
        assert "unit/test_text.py" in select("src/redrive/policy/backoff.py", **texts)

    def test_attribute_of_a_missing_subpackage_is_the_package(self, select):
        texts = {"tests__test_rows": "import redrive\nredrive.rows.csv()\n"}
        assert "test_rows.py" in select("src/redrive/__init__.py", **texts)

    def test_import_for_types_is_no_dependency(self, select):
        text = "if TYPE_CHECKING:\n    import redrive.store\nelse:\n    import redrive.runs\n"
        texts = {"src__redrive__runs": "", "src__redrive__flows": text, "tests__test_flows": "import redrive.flows\n"}
        assert select("src/redrive/store.py", **texts) == ["unit/test_store.py"]
        assert select("src/redrive/runs.py", **texts) == ["test_flows.py"]

    def test_command_line_depends_on_every_command(self, select):
        texts = {
            "src__redrive__cli__app": "",
            "src__redrive__cli__runs": "",
            "tests__test_app": "import redrive.cli.app\n",
        }
        assert select("src/redrive/cli/runs.py", **texts) == ["test_app.py"]

    def test_program_that_is_named_is_a_dependency(self, select):
        texts = {
            **{"tests__support__rows_worker": "", "tests__unit__test_kill": 'run("rows_worker")\n'},
            **{"bench__rows": "", "tests__unit__bench__test_rows": 'bench("rows.py")\n'},
        }
        assert select("tests/support/rows_worker.py", **texts) == ["unit/test_kill.py"]
        assert select("bench/rows.py", **texts) == ["unit/bench/test_rows.py"]

    def test_file_that_cannot_be_parsed_selects_its_importers(self, select):
        assert select("src/redrive/store.py", src__redrive__store="def") == ["unit/test_store.py"]

    def test_deleted_module_selects_files_that_still_import_it(self, select):
        texts = {"tests__test_old": "from redrive.old import name\n"}
        assert select("src/redrive/old.py", **texts) == ["test_old.py"]


class TestConftest:
    CONFTEST = """
import pytest
import redrive

@pytest.fixture
def store(path):
    return redrive.Store(path)

@pytest.fixture(name="letters")
def _letters(store): ...
"""

    def test_changed_conftest_selects_the_tests_below_it(self, select):
        texts = {"tests__unit__conftest": self.CONFTEST, "tests__test_above": "", "tests__unit__rows__test_below": "x"}
        selected = select("tests/unit/conftest.py", **texts)
        assert "unit/rows/test_below.py" in selected
        assert "test_above.py" not in selected

    def test_fixture_selects_only_the_tests_that_name_it(self, select):
        texts = {
            "tests__conftest": self.CONFTEST,
            "tests__test_direct": "def test_x(store): ...\n",
            "tests__test_indirect": "def test_x(letters): ...\n",
            "tests__test_neither": "def test_x(other): ...\n",
        }
        selected = select("src/redrive/store.py", **texts)
        assert selected == ["test_direct.py", "test_indirect.py", "unit/test_store.py"]

    def test_autouse_fixture_selects_every_test_below(self, select):
        conftest = self.CONFTEST.replace("fixture\n", "fixture(autouse=True)\n")
        assert "unit/test_backoff.py" in select("src/redrive/store.py", tests__conftest=conftest)


class TestOtherFiles:
    def test_changed_test_selects_itself(self, select):
        assert select("tests/unit/test_store.py") == ["unit/test_store.py"]

    def test_deleted_test_is_not_selected(self, select):
        assert select("tests/unit/test_gone.py") == []

    @pytest.mark.parametrize("path", ["pyproject.toml", "Makefile", "src/redrive/py.typed", "tests/data/rows.csv"])
    def test_unknown_file_selects_everything(self, select, path):
        assert select(path, "tests/unit/test_store.py") == ["tests"]

    @pytest.mark.parametrize("path", ["CHANGELOG.md", ".gitignore"])
    def test_file_that_no_test_reads_selects_nothing(self, select, path):
        assert select(path) == []

    def test_changed_page_selects_the_tests_that_read_it(self, select):
        texts = {"tests__integration__test_docs": "", "tests__test_rows_page": 'PAGE = "docs/rows.md"\n'}
        assert select("docs/rows.md", **texts) == ["integration/test_docs.py", "test_rows_page.py"]
        assert select("docs/tasks.md", "examples/vendor.py", **texts) == ["integration/test_docs.py"]

    def test_results_of_benchmarks_select_their_tests(self, select):
        texts = {"tests__unit__bench__test_record": ""}
        assert select("bench/results.json", **texts) == ["unit/bench/test_record.py"]


@pytest.mark.process
class TestCommand:
    @pytest.fixture
    def git(self, tmp_path):
        def git(*words):
            identity = ["-c", "user.name=test", "-c", "user.email=test@example.com"]
            subprocess.run(["git", *identity, *words], cwd=tmp_path, check=True, capture_output=True)

        write(tmp_path, TREE | {".gitignore": "*.log\n"})
        git("init", "--quiet")
        git("add", ".")
        git("commit", "--quiet", "--message", "first")
        return git

    def test_change_is_edited_deleted_and_untracked_files(self, git, tmp_path):
        write(tmp_path, {"src/redrive/store.py": "x = 1\n", "tests/unit/test_é new.py": "", "run.log": ""})
        (tmp_path / "src/redrive/policy/backoff.py").unlink()
        assert changed_files(tmp_path) == [
            "src/redrive/policy/backoff.py",
            "src/redrive/store.py",
            "tests/unit/test_é new.py",
        ]

    def test_renamed_file_is_there_by_both_names(self, git, tmp_path):
        git("mv", "src/redrive/store.py", "src/redrive/stores.py")
        assert changed_files(tmp_path) == ["src/redrive/store.py", "src/redrive/stores.py"]

    def test_base_is_the_revision_to_compare_with(self, git, tmp_path, capsys):
        write(tmp_path, {"src/redrive/store.py": "x = 1\n"})
        git("commit", "--quiet", "--all", "--message", "second")
        main(["--base", "HEAD~1"], tmp_path)
        assert capsys.readouterr() == ("tests/unit/test_store.py\n", "")

    def test_unknown_base_is_one_sentence(self, git, tmp_path):
        with pytest.raises(SystemExit, match="cannot compare with 'nonsense': pass a revision"):
            main(["--base", "nonsense"], tmp_path)

    def test_no_change_prints_nothing_but_a_notice(self, git, tmp_path, capsys):
        main([], tmp_path)
        assert capsys.readouterr() == ("", "the change does not affect any test\n")

    def test_why_prints_the_chain_to_a_changed_file(self, git, tmp_path, capsys):
        write(tmp_path, {"src/redrive/policy/backoff.py": "x = 1\n"})
        main(["--why", "tests/unit/test_retry.py"], tmp_path)
        chain = ["tests/unit/test_retry.py", "src/redrive/policy/retry.py", "src/redrive/policy/backoff.py"]
        assert capsys.readouterr().out.splitlines() == chain


@pytest.mark.slow
class TestRealTree:
    def test_backoff_selects_its_tests(self, real):
        selected = real.select(["src/redrive/policy/backoff.py"])
        assert "tests/unit/policy/test_backoff.py" in selected
        assert "tests/unit/policy/test_time_of_day.py" not in selected

    def test_csv_source_selects_the_csv_tests(self, real):
        selected = real.select(["src/redrive/rows/sources/csv/scanner.py"])
        assert {f"tests/unit/rows/sources/test_csv{name}.py" for name in ("", "_properties", "_torture")} <= {*selected}
        assert not [path for path in selected if path.startswith("tests/unit/policy/")]

    def test_command_selects_the_command_line_tests(self, real):
        selected = real.select(["src/redrive/cli/runs.py"])
        assert {"tests/unit/cli/test_runs.py", "tests/unit/cli/test_hints.py"} <= {*selected}
        assert not [path for path in selected if path.startswith("tests/unit/policy/")]

    def test_every_module_is_reached_by_a_test(self, real):
        whole = {name for name, (pattern, _) in DYNAMIC.items() if pattern == WHOLE}
        reached = walk((test for test in real.tests if module_of(test) not in whole), real.edges)
        modules = {path for path in real.sources if path.startswith("src/")}
        assert modules - {file_of(node) for node in reached} == set()

    def test_dynamic_dependencies_name_existing_modules(self, real):
        modules = [module_of(path) for path in real.sources]
        assert {*DYNAMIC} - {*modules} == set()
        patterns = {pattern for pattern, _ in DYNAMIC.values()}
        assert {pattern for pattern in patterns if not any(fnmatchcase(name, pattern) for name in modules)} == set()
