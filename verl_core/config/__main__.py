"""`python -m verl_core.config`: short for `python -m verl_core.config.explain`."""

from __future__ import annotations

import sys

from verl_core.config.explain import main

sys.exit(main())
