"""Print docs/algorithms.md."""

import sys

from verl_core.algorithms.page import page

sys.stdout.write(page())
