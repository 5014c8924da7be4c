"""Checks of `reward.*`: one way to a score, whole parts, penalties and limits that can be kept."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from verl_core.config.checks import Facts, check, no_effect

_REMOTE, _OVERLONG = "reward.remote", "reward.overlong_buffer"
_SOURCES = ("verifier", "function", "remote", "reward_model")


@check
def parts_of_the_reward_are_whole(facts: Facts) -> Iterator[str]:
    """Every part of a composite reward has a name of its own, one source and a finite weight."""
    entries = facts.config.reward.composite
    for number, entry in enumerate(entries):
        problem = _problem(entry)
        if problem:
            yield f"reward.composite: part {number} {problem}; got {entry}"
    found = [entry.get("name") for entry in entries]
    if len(set(map(str, found))) < len(found):
        yield f"reward.composite: two parts share a name in {found}"
    if sum(bool(entry.get("remote")) for entry in entries) > 1:
        yield f"reward.composite: more than one part is remote, and there is one {_REMOTE}.url"


def _problem(entry: dict[str, Any]) -> str:
    name, weight = entry.get("name"), entry.get("weight", 1.0)
    if not isinstance(name, str) or not name or name == "score":
        return "needs a name, and another than 'score'"
    if unknown := sorted(set(entry) - {"name", "weight", *_SOURCES}):
        return f"has an unknown key {unknown[0]!r}; known are name, weight, {', '.join(_SOURCES)}"
    if sum(bool(entry.get(source)) for source in _SOURCES) != 1:
        return f"needs exactly one of {', '.join(_SOURCES)}"
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not abs(weight) < 1e30:
        return "needs a finite number as its weight"
    if any(entry.get(key) not in (None, False, True) for key in ("remote", "reward_model")) or not all(
        isinstance(entry.get(key, ""), str) for key in ("verifier", "function")
    ):
        return "needs text as its verifier or function, true as its remote or reward_model"
    if entry.get("function") and not all(entry["function"].rpartition(":")[::2]):
        return "needs its function as file.py:name or module:name"
    return ""


@check
def one_way_to_a_score(facts: Facts) -> Iterator[str]:
    """A composite names all its functions; one service or one function scores otherwise."""
    reward = facts.config.reward
    custom = ["reward.custom_reward_function.path", "reward.custom_reward_function.name"]
    is_remote = any(entry.get("remote") for entry in reward.composite)
    if reward.composite:
        yield from no_effect(facts, custom, "with reward.composite, which names its functions itself")
    if reward.composite and not is_remote:
        yield from no_effect(facts, facts.given_below(_REMOTE), "without a part of reward.composite with remote: true")
    if is_remote and not reward.remote.url:
        yield f"{_REMOTE}.url: a part of reward.composite is remote; name the service"
    if not reward.composite and reward.remote.url:
        yield from no_effect(facts, custom, f"with {_REMOTE}.url and without reward.composite")
    if not reward.composite and not reward.remote.url:
        yield from no_effect(facts, facts.given_below(_REMOTE), f"without {_REMOTE}.url")


@check
def the_service_can_be_asked(facts: Facts) -> Iterator[str]:
    """An address that HTTP knows; attempts that fit into the deadline."""
    remote = facts.config.reward.remote
    if remote.url and not remote.url.startswith(("http://", "https://")):
        yield f"{_REMOTE}.url: must begin with http:// or https://, got {remote.url!r}"
    if remote.timeout_s > remote.deadline_s:
        limit = f"{_REMOTE}.deadline_s={remote.deadline_s:g}"
        yield f"{_REMOTE}.timeout_s: {remote.timeout_s:g} s for one attempt exceed {limit}"


@check
def the_overlong_buffer_fits(facts: Facts) -> Iterator[str]:
    """The penalty grows within the response."""
    buffer, longest = facts.config.reward.overlong_buffer, facts.config.data.max_response_length
    if not buffer.enable:
        yield from no_effect(facts, facts.given_below(_OVERLONG), f"without {_OVERLONG}.enable=true")
    elif not 1 <= buffer.len <= longest:
        yield f"{_OVERLONG}.len: must be at least 1 and at most data.max_response_length={longest}, got {buffer.len}"
