"""Lines of JSON in an AppendLog. Invariant: a line is whole when it ends with a newline and parses; what follows is
torn.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from verl_core.errors import RecordError


def whole_lines(data: bytes) -> int:
    """Length of the prefix of whole lines. A power cut may also leave zeros with a newline behind: so the last line is
    parsed.
    """
    end = data.rfind(b"\n") + 1
    while end and not _parses(data[data.rfind(b"\n", 0, end - 1) + 1 : end]):
        end = data.rfind(b"\n", 0, end - 1) + 1
    return end


def parse_lines(data: bytes, name: str) -> Iterator[dict[str, Any]]:
    """The objects, one by one.

    Raises:
        RecordError: a line inside the file is damaged; names the line.
    """
    for number, line in enumerate(data.splitlines(), start=1):
        try:
            value = json.loads(line)
        except ValueError as error:
            raise RecordError(f"{name}, line {number} is damaged ({error}); restore the file from a backup") from error
        yield value


def _parses(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False
