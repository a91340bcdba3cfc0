"""Figures as images: the format of the file name, reproducible, and rejected before the work if impossible."""

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


def test_every_figure_has_a_panel_with_axes_lines_and_marks(tmp_path):
    save([TIME, WRITES], tmp_path / "both.svg")
    said = words(tmp_path / "both.svg")
    for word in ("requests", "seconds", "a second", "fixed", "ours", "outage", "back", "writes", "clients", "full"):
        assert word in said


@pytest.mark.slow
def test_image_has_the_format_of_its_name_and_is_reproducible(tmp_path):
    for name, begins in (("same.svg", b"<?xml"), ("same.PNG", b"\x89PNG\r\n")):
        path = tmp_path / name
        save([WRITES], path)
        first = path.read_bytes()
        save([WRITES], path)
        assert first.startswith(begins)
        assert path.read_bytes() == first


def test_drawing_leaves_matplotlib_settings_unchanged(tmp_path):
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
def test_invalid_path_is_rejected_in_a_sentence(tmp_path, name, said):
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(ValueError, match=re.escape(said)):
        check(tmp_path / name)


def test_unwritable_path_is_rejected(tmp_path, monkeypatch):
    """To root nothing is forbidden: the system's answer is given in its place."""
    monkeypatch.setattr("os.access", lambda path, mode: False)
    with pytest.raises(ValueError, match="permission denied; name another place"):
        check(tmp_path / "out.png")


def test_existing_image_may_be_replaced(tmp_path):
    (tmp_path / "out.png").write_text("old")
    check(tmp_path / "out.png")
    save([WRITES], tmp_path / "out.png")
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")


def test_missing_extra_names_the_package_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=re.escape("pip install 'redrive[plot]'")):
        check(tmp_path / "out.png")
