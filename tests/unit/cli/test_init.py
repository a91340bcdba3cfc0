"""`redrive init`: the sample project that it writes."""

import json

import pytest

FILES = ["pipeline.py", "deliveries.csv", "redrive.toml"]


class TestNewProject:
    def test_project_runs_and_rejects_one_row(self, run, here, monkeypatch):
        assert run("init", "project").code == 0
        monkeypatch.chdir(here / "project")
        done = run("run", "pipeline.py", "--json")
        report = json.loads(done.out)
        assert (done.code, report["read"], report["written"], report["rejected"]) == (0, 5, 4, 1)
        assert run("dlq", "causes").rows[0][1] == "1"

    def test_project_passes_its_own_check(self, run, here, monkeypatch):
        run("init", "project")
        monkeypatch.chdir(here / "project")
        assert run("check", "pipeline.py").code == 0

    def test_next_steps_start_with_the_directory(self, run):
        steps = run("init", "my project").err.partition("Next steps:\n")[2].splitlines()
        assert steps[0].endswith("  cd 'my project'")
        assert [step.partition("  redrive ")[2] for step in steps[1:]] == [
            "check pipeline.py",
            "run pipeline.py",
            "dlq causes",
        ]

    def test_working_directory_needs_no_cd(self, run, here):
        assert "cd " not in run("init").err
        assert sorted(path.name for path in here.iterdir()) == sorted(FILES)

    def test_json_lists_the_files(self, run):
        assert json.loads(run("init", "project", "--json").out) == {"directory": "project", "files": FILES}


class TestExistingFiles:
    @pytest.mark.parametrize("name", FILES)
    def test_no_file_is_overwritten(self, run, here, name):
        (here / name).write_text("mine")
        answer = run("init")
        assert answer.code == 64
        assert answer.sentence == (
            f"cannot create a project in .: {name} exists. Name another directory. Nothing was written"
        )
        assert [(path.name, path.read_text()) for path in here.iterdir()] == [(name, "mine")]

    def test_file_in_place_of_the_directory_is_named(self, run, here):
        (here / "taken").write_text("mine")
        answer = run("init", "taken")
        assert answer.code != 0
        assert answer.sentence.startswith("cannot write taken")
