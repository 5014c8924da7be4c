"""Checks of `algorithm.filter_groups.*`: a filter judges what is known while groups are sampled."""

from __future__ import annotations

from collections.abc import Iterator

from verl_core.config.checks import Facts, check, no_effect

_FILTER = "algorithm.filter_groups"


@check
def filter_settings_are_read(facts: Facts) -> Iterator[str]:
    """Settings of a filter that is off, or of a cap that there is none."""
    filtered = facts.config.algorithm.filter_groups
    if not filtered.enable:
        yield from no_effect(facts, facts.given_below(_FILTER), f"without {_FILTER}.enable=true")
    elif not filtered.max_num_gen_batches:
        yield from no_effect(facts, [f"{_FILTER}.when_capped"], f"with {_FILTER}.max_num_gen_batches=0")


@check
def a_filter_has_something_to_compare(facts: Facts) -> Iterator[str]:
    """A group of one is constant by itself; a reward with its KL is not known while sampling."""
    filtered, n = facts.config.algorithm.filter_groups, facts.config.actor_rollout_ref.rollout.n
    if filtered.enable and n < 2:
        yield (
            f"{_FILTER}.enable: compares the sessions of a group, and actor_rollout_ref.rollout.n={n}; set that to at"
            " least 2, or delete the filter"
        )
    if filtered.enable and filtered.metric == "seq_final_reward":
        yield (
            f"{_FILTER}.metric: seq_final_reward includes the KL to the reference, which is not known while groups are"
            " sampled; use seq_reward, the score without it"
        )
