"""The benchmark of capacity runs and reports its figures."""

import sys
from argparse import Namespace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3] / "bench"))
import capacity


def test_report_has_every_figure():
    found = capacity.measured(Namespace(quick=True, only=["sqlite"], repeat=1))
    assert all(figure > 0 for figure in found["times"][3]["sqlite"].values())
    assert all(megabytes > 0 for megabytes in found["sizes"]["sqlite"].values())
    assert "| 100 letters | " in capacity.report(found)
