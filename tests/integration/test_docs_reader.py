"""The reader that runs the documentation detects what is wrong with a page."""

import pytest

from tests.support.docs_pages import chapters
from tests.support.docs_reader import Reader, write

PAGE = """# A page

```python
# greeting.py
WORD = "hello"
```

```python
import greeting

count = 2
```

```python
with open("words.txt", "w") as file:
    file.write(greeting.WORD * count)
```

```console
$ cat words.txt
hellohello
$ echo 12:00 7 rows; echo a; echo b; echo done  # exit code 3
12:00 7 rows
…
done
```

<!-- directory: elsewhere -->

```console
$ ls
$ echo "it took 0.3 s, 2026-11-15 10:54 UTC"
it took 17 s, 2025-01-01 00:00 UTC
```

```sh
test ! -e words.txt
false  # exit code 1
```
"""


@pytest.fixture
def read(tmp_path):
    def read(text):
        page = tmp_path / "page.md"
        page.write_text(text)
        seen = []
        for number, chapter in enumerate(chapters(page).values()):
            directory = tmp_path / str(number)
            directory.mkdir(exist_ok=True)
            seen += Reader(directory).follow(chapter)
        return page, seen

    return read


def test_page_runs_in_order_and_each_chapter_in_its_directory(read):
    _, seen = read(PAGE)
    assert [(one.example.command, one.code) for one in seen] == [
        ("cat words.txt", 0),
        ("echo 12:00 7 rows; echo a; echo b; echo done", 0),
        ("ls", 0),
        ('echo "it took 0.3 s, 2026-11-15 10:54 UTC"', 0),
    ]
    assert [one.is_as_shown for one in seen] == [True, False, True, True]  # it promises exit code 3


@pytest.mark.parametrize(
    ("shown", "is_as_shown"),
    [
        ("one\n7 rows\ndone\n", True),
        ("one\n…\ndone\n", True),
        ("one\n…\n", True),
        ("…\n7 rows\n…\n", True),
        ("one\n8 rows\ndone\n", False),
        ("one\n7 rows\n", False),
        ("one\n…\nover\n", False),
        ("…\none\n", False),
        ("", False),
    ],
)
def test_unexpected_output_is_an_error(read, shown, is_as_shown):
    _, (seen,) = read(f"```console\n$ printf 'one\\n7 rows\\ndone\\n'\n{shown}```\n")
    assert seen.is_as_shown == is_as_shown
    if not is_as_shown:
        with pytest.raises(AssertionError, match=r"page\.md:2: printf(.|\n)*done"):
            seen.check()


def test_times_differ_from_page_unless_exact(read):
    page = "```console\n$ echo it took 0.3 s\nit took 7.1 s\n```\n"
    (of_the_day,), (to_the_letter,) = read(page)[1], read(f"<!-- exact -->\n\n{page}")[1]
    assert (of_the_day.is_as_shown, to_the_letter.is_as_shown) == (True, False)


def test_error_in_code_shows_the_line_of_the_page(read):
    with pytest.raises(AssertionError, match=r'page\.md:9 fails(.|\n)*page\.md", line 11(.|\n)*ZeroDivisionError'):
        read(PAGE.replace("count = 2", "count = 2 / 0"))


def test_warning_in_code_of_a_page_is_an_error(read):
    with pytest.raises(AssertionError, match="DeprecationWarning: old"):
        read(PAGE.replace("count = 2", "import warnings; warnings.warn('old', DeprecationWarning); count = 2"))


def test_unexpected_exit_code_of_a_script_is_an_error(read):
    with pytest.raises(AssertionError, match=r"page\.md:\d+ ends with 1"):
        read(PAGE.replace("false  # exit code 1", "false  # exit code 2"))


def test_actual_output_can_be_written_into_the_page(read):
    page, seen = read(PAGE.replace("hellohello\n$", "bye\n$"))
    assert write(page, seen) == 2
    assert page.read_text() == PAGE.replace("  # exit code 3\n12:00 7 rows\n…", "\n12:00 7 rows\na\nb")


def test_files_of_an_example_are_copied_beside_the_page(read):
    _, seen = read(
        "<!-- files: examples/deliveries -->\n\n```python\n# vendor.py\nNEW = 1\n```\n\n"
        "```console\n$ head -n 1 deliveries.csv\ndelivery_id,city,fee\n$ cat vendor.py\n# vendor.py\nNEW = 1\n```\n"
        "\n<!-- directory: elsewhere -->\n\n```console\n$ ls\n```\n"
    )
    assert [one.is_as_shown for one in seen] == [True, True, True]
