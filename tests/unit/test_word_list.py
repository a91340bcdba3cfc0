"""The vocabulary check: what it reads, what it allows, and when a file fails."""

import pytest

from tests.support import word_list
from tests.support.word_list import INSTEAD, Use, exceeded, find_uses, read_allowed, read_baseline, write_baseline


def words(path, content, allowed=""):
    return [(use.line, use.word) for use in find_uses(path, content, read_allowed(allowed))]


def used(path, *lines):
    return [Use(path, line, "anew", "retry") for line in lines]


class TestPython:
    def test_comments_docstrings_and_strings_are_read(self):
        source = '"""Go on.\n\nMend it."""\n\nx = 1  # tried anew\nerror = f"{x} was told"\n'
        assert words("a.py", source) == [(1, "Go on"), (3, "Mend"), (5, "anew"), (6, "told")]

    def test_identifiers_are_skipped(self):
        assert words("a.py", "told = held.settled(anew=1)\n") == []

    def test_strings_that_are_names_are_skipped(self):
        assert words("a.py", 'x = "patience", "held", "retry.patience"\ny = "held back"\n') == [(2, "held")]

    def test_inline_code_is_skipped(self):
        assert words("a.py", '"""Set `patience` to wait, or ``told``."""\n') == []


class TestPages:
    def test_prose_is_read_and_fenced_code_is_skipped(self):
        page = "# Told\n\n```python\n# anew\n```\n\nWho heals?\n"
        assert words("docs/a.md", page) == [(1, "Told"), (7, "heals")]

    def test_indented_fence_is_skipped(self):
        assert words("a.md", "- one\n\n    ```text\n    anew\n    ```\n\n    mended\n") == [(7, "mended")]

    def test_target_of_a_link_is_skipped(self):
        assert words("a.md", "[told](alerts.md#who-is-told)") == [(1, "told")]

    def test_phrase_over_two_lines_is_found(self):
        assert words("a.md", "The run goes\non here.\n") == [(1, "goes on")]


class TestWords:
    @pytest.mark.parametrize(
        "text", ["retold", "healthy", "Shell", "menders", "peopled", "unsaid", "restsx", "repeatable"]
    )
    def test_part_of_a_longer_term_is_not_a_use(self, text):
        assert words("a.md", text) == []

    @pytest.mark.parametrize("pattern", INSTEAD)
    def test_replacement_is_in_the_vocabulary(self, pattern):
        assert words("a.md", INSTEAD[pattern]) == []


class TestAllowList:
    ALLOWED = "# reasons\nsrc/demo/* | partners? | a story\n* | locks? (?:is|are) held | locks are held\n"

    def test_allowed_use_is_skipped_in_its_files_only(self):
        assert words("src/demo/a.py", "# a partner\n", self.ALLOWED) == []
        assert words("src/calls/a.py", "# a partner\n", self.ALLOWED) == [(1, "partner")]

    def test_allowed_phrase_does_not_hide_its_neighbours(self):
        assert words("a.md", "The lock is held, the task is held.", self.ALLOWED) == [(1, "held")]

    def test_allowed_phrase_over_lines_keeps_line_numbers(self):
        assert words("a.md", "x `a\nb`\nanew", self.ALLOWED) == [(3, "anew")]

    def test_line_without_a_reason_is_an_error(self):
        with pytest.raises(AssertionError, match=r"PATH \| PATTERN \| REASON"):
            read_allowed("src/* | told\n")


class TestBaseline:
    def test_file_at_or_below_its_count_passes(self):
        assert exceeded(used("a.py", 1, 2), {"a.py": 2}) == []
        assert exceeded(used("a.py", 1), {"a.py": 2}) == []

    def test_file_above_its_count_reports_all_its_uses(self):
        assert exceeded([*used("a.py", 1, 2, 3), *used("b.py", 1)], {"a.py": 2, "b.py": 1}) == used("a.py", 1, 2, 3)

    def test_new_file_has_no_allowance(self):
        assert exceeded(used("new.py", 7), {}) == used("new.py", 7)

    def test_written_baseline_reads_back_without_zeros(self):
        assert read_baseline(write_baseline({"b.py": 12, "a.py": 1, "c.py": 0})) == {"a.py": 1, "b.py": 12}


class TestCommand:
    @pytest.fixture
    def repository(self, tmp_path, monkeypatch):
        for name in ("ROOT", "ALLOWED", "BASELINE"):
            monkeypatch.setattr(word_list, name, tmp_path / getattr(word_list, name).name)
        monkeypatch.setattr(word_list, "ROOT", tmp_path)
        (tmp_path / "src" / "redrive").mkdir(parents=True)
        (tmp_path / "docs").mkdir()
        (tmp_path / "README.md").write_text("Tried anew.\n")
        word_list.ALLOWED.write_text("")
        return tmp_path

    def test_check_fails_when_a_file_gets_worse(self, repository, capsys):
        assert word_list.main(["--update"]) == 0
        assert word_list.main([]) == 0
        (repository / "README.md").write_text("Tried anew.\nMended.\n")
        assert word_list.main([]) == 1
        assert "README.md:2: 'Mended' is not in the vocabulary. Use: fix, repair." in capsys.readouterr().out

    def test_update_lowers_a_count_and_never_raises_one(self, repository):
        word_list.BASELINE.write_text("3 README.md\n5 docs/gone.md\n")
        assert word_list.main(["--update"]) == 0
        assert read_baseline(word_list.BASELINE.read_text()) == {"README.md": 1}
        (repository / "README.md").write_text("Mended anew.\n")
        assert word_list.main(["--update"]) == 1
        assert read_baseline(word_list.BASELINE.read_text()) == {"README.md": 1}

    def test_named_file_reports_every_use(self, repository, capsys):
        word_list.BASELINE.write_text("1 README.md\n")
        assert word_list.main([str(repository / "README.md")]) == 1
        assert "README.md:1: 'anew'" in capsys.readouterr().out
