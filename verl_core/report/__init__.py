"""The report of a run: one self-contained HTML page, and the learning curve alone. Invariant: reads the run directory
only, and escapes all that it shows."""

from verl_core.report.curve import curve_svg
from verl_core.report.page import render_report, write_report

__all__ = ["curve_svg", "render_report", "write_report"]
