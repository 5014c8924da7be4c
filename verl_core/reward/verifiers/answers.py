"""Finding the final answer in a response. Pure text in, text out; every function returns None when it finds nothing."""

from __future__ import annotations

import re

_TAGGED = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
_BOXED = r"\boxed{"


def tagged(response: str) -> str | None:
    """Content of the last `<answer>...</answer>`, without surrounding space."""
    found = _TAGGED.findall(response)
    return found[-1].strip() if found else None


def boxed(response: str) -> str | None:
    r"""Content of the last complete `\boxed{...}`, inner braces balanced."""
    start = response.rfind(_BOXED)
    while start >= 0:
        inside = start + len(_BOXED)
        depth = 1
        for position in range(inside, len(response)):
            depth += {"{": 1, "}": -1}.get(response[position], 0)
            if depth == 0:
                return response[inside:position].strip()
        start = response.rfind(_BOXED, 0, start)
    return None


def last_number(response: str) -> str | None:
    """The last integer or decimal, thousands separators removed. A minus directly after a digit is taken as an
    operator."""
    found = list(_NUMBER.finditer(response))
    if not found:
        return None
    text, start = found[-1].group(), found[-1].start()
    if text.startswith("-") and start > 0 and response[start - 1].isalnum():
        text = text[1:]
    return text.replace(",", "")


def is_number(text: str) -> bool:
    """Whether the whole of `text` is one number as `last_number` knows them."""
    return _NUMBER.fullmatch(text.strip()) is not None


def last_line(response: str) -> str | None:
    """The last line that is not blank, without surrounding space."""
    lines = [line.strip() for line in response.splitlines() if line.strip()]
    return lines[-1] if lines else None
