"""Files for contributors: their links exist, and their hooks are local and run the checks of the Makefile."""

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
MAKEFILE = (ROOT / "Makefile").read_text()
PAGES = ["CONTRIBUTING.md", "CODE_OF_CONDUCT.md", "SECURITY.md"]


def read_hooks():
    return yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]


@pytest.mark.parametrize("name", PAGES)
class TestPage:
    def test_links_lead_to_files(self, name):
        links = re.findall(r"\]\((?!https?:)([^)#]+)", (ROOT / name).read_text())
        assert [link for link in links if not (ROOT / link).exists()] == []

    def test_named_paths_exist(self, name):
        paths = re.findall(r"`((?:src|tests|docs)/[\w/.-]+)`", (ROOT / name).read_text())
        assert [path for path in paths if not (ROOT / path).exists()] == []

    def test_named_targets_are_in_the_makefile(self, name):
        targets = set(re.findall(r"`make ([\w-]+)`", (ROOT / name).read_text()))
        assert targets <= {"help", *re.findall(r"^([\w-]+):.*##", MAKEFILE, re.MULTILINE)}

    def test_page_is_part_of_the_sdist(self, name):
        assert f'"{name}"' in (ROOT / "pyproject.toml").read_text()


class TestHooks:
    def test_hooks_are_local(self):
        assert [repo["repo"] for repo in read_hooks()] == ["local"]

    def test_hooks_run_what_lint_runs(self):
        lint = MAKEFILE.partition("\nlint:")[2].partition("\n\n")[0].replace("$(BIN)", ".venv/bin")
        tools = [re.sub(r" --force-exclude$", "", hook["entry"]).split(" --")[0] for hook in read_hooks()[0]["hooks"]]
        assert len(tools) == 3
        assert [tool for tool in tools if tool not in lint] == []


class TestIssueTemplates:
    @pytest.mark.parametrize("name", ["bug_report", "feature_request"])
    def test_header_names_the_template(self, name):
        _, header, body = (ROOT / ".github" / "ISSUE_TEMPLATE" / f"{name}.md").read_text().split("---\n", 2)
        assert {"name", "about"} <= set(yaml.safe_load(header))
        assert body.strip()
