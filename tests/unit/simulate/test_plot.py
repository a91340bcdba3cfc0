"""Figures as a picture: the kind that its name says, the same each time, refused before the work where it cannot be."""

import re
import sys

import pytest

from redrive.simulate.figure import Figure, Series, check, save

TIME = Figure(
    title="requests",
    x_label="seconds",
    y_label="a second",
    series=[
        Series("fixed", [(0, 1), (1, 50), (2, 0)]),
        Series("ours", [(float(n), 1.0 + n) for n in range(100)], emphasis=True),
    ],
    log_y=True,
    marks=[(0.5, "outage"), (1.5, "back")],
)
WRITES = Figure("writes", "clients", "mean", [Series("full", [(1, 1), (1_000, 500)])], log_x=True)


def words(picture):
    """An SVG's words stand in it as comments beside their outlines."""
    return re.findall(r"<!-- (.+?) -->", picture.read_text())


def test_every_figure_has_its_panel_with_title_axes_lines_and_marks(tmp_path):
    save([TIME, WRITES], tmp_path / "both.svg")
    said = words(tmp_path / "both.svg")
    for word in ("requests", "seconds", "a second", "fixed", "ours", "outage", "back", "writes", "clients", "full"):
        assert word in said


@pytest.mark.slow
def test_a_picture_is_of_the_kind_that_its_name_says_and_the_same_each_time(tmp_path):
    for name, begins in (("same.svg", b"<?xml"), ("same.PNG", b"\x89PNG\r\n")):
        path = tmp_path / name
        save([WRITES], path)
        first = path.read_bytes()
        save([WRITES], path)
        assert first.startswith(begins)
        assert path.read_bytes() == first


def test_to_draw_leaves_the_settings_of_the_program_as_they_were(tmp_path):
    import matplotlib

    before = dict(matplotlib.rcParams)
    save([WRITES], tmp_path / "x.svg")
    assert dict(matplotlib.rcParams) == before


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("out.pdf", "out.pdf must end in .png or .svg"),
        ("out", "out must end in .png or .svg"),
        ("nowhere/out.png", "cannot be written: there is no directory"),
        ("folder.png", "is a directory; name a file in it"),
    ],
)
def test_a_path_that_cannot_be_is_refused_in_a_sentence(tmp_path, name, said):
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(ValueError, match=re.escape(said)):
        check(tmp_path / name)


def test_a_place_that_may_not_be_written_to_is_refused(tmp_path, monkeypatch):
    """To root nothing is forbidden: the system's answer is given in its place."""
    monkeypatch.setattr("os.access", lambda path, mode: False)
    with pytest.raises(ValueError, match="permission denied; name another place"):
        check(tmp_path / "out.png")


def test_a_picture_that_is_there_may_be_replaced(tmp_path):
    (tmp_path / "out.png").write_text("old")
    check(tmp_path / "out.png")
    save([WRITES], tmp_path / "out.png")
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")


def test_without_the_extra_the_sentence_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=re.escape("pip install 'redrive[plot]'")):
        check(tmp_path / "out.png")
