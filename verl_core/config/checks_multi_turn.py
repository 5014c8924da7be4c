"""Checks of `actor_rollout_ref.rollout.multi_turn.*`: one agent, tools to call, turns that fit."""

from __future__ import annotations

from collections.abc import Iterator

from verl_core.config.checks import Facts, check, no_effect

_ROLLOUT = "actor_rollout_ref.rollout"
_MULTI_TURN, _AGENT = f"{_ROLLOUT}.multi_turn", f"{_ROLLOUT}.agent.default_agent_loop"


@check
def turns_belong_to_an_agent(facts: Facts) -> Iterator[str]:
    """verl's switch and the agent's name say the same; an agent of the user's own may read the settings too."""
    rollout = facts.config.actor_rollout_ref.rollout
    name, enabled = rollout.agent.default_agent_loop, rollout.multi_turn.enable
    if name == "tool_agent" and not enabled:
        yield f"{_AGENT}: tool_agent needs {_MULTI_TURN}.enable=true"
    if enabled and name != "tool_agent" and "." not in name:
        yield f"{_MULTI_TURN}.enable: {_AGENT}={name} takes one turn; set it to tool_agent"


@check
def turn_settings_are_read(facts: Facts) -> Iterator[str]:
    """Without turns there is nothing between them."""
    if not facts.config.actor_rollout_ref.rollout.multi_turn.enable:
        keys = [*facts.given_below(_MULTI_TURN), "warm_start.tool_share"]
        yield from no_effect(facts, keys, f"without {_MULTI_TURN}.enable=true")


@check
def turns_have_tools(facts: Facts) -> Iterator[str]:
    """A list, or a file; and room for a call, an answer and what follows."""
    settings = facts.config.actor_rollout_ref.rollout.multi_turn
    if not settings.enable:
        return
    if not settings.tools and not settings.tool_config_path:
        yield f"{_MULTI_TURN}.tools: no tool is named; give one, such as calculator, or {_MULTI_TURN}.tool_config_path"
    if settings.tools and settings.tool_config_path:
        yield f"{_MULTI_TURN}.tool_config_path: {_MULTI_TURN}.tools is given too; delete one of them"
    if settings.max_assistant_turns == 1:
        yield (
            f"{_MULTI_TURN}.max_assistant_turns: calls of the last turn are not run, so with 1 no tool ever answers; "
            f"raise it or set {_AGENT}=single_turn_agent"
        )


@check
def turns_fit_the_response(facts: Facts) -> Iterator[str]:
    """data.max_response_length holds all turns and all answers."""
    settings, whole = facts.config.actor_rollout_ref.rollout.multi_turn, facts.config.data.max_response_length
    if not settings.enable:
        return
    if settings.max_tool_response_length >= whole:
        yield (
            f"{_MULTI_TURN}.max_tool_response_length: one answer of {settings.max_tool_response_length} tokens would "
            f"fill data.max_response_length={whole}, which holds all turns and answers; lower it"
        )
    if settings.max_turn_length is not None and settings.max_turn_length >= whole:
        yield (
            f"{_MULTI_TURN}.max_turn_length: {settings.max_turn_length} is no limit below data.max_response_length="
            f"{whole}; lower it or leave it null"
        )


@check
def scripted_lengths_end_no_turn(facts: Facts) -> Iterator[str]:
    """A drawn length forbids the end token that a call ends with."""
    rollout = facts.config.actor_rollout_ref.rollout
    if rollout.multi_turn.enable and rollout.scripted_lengths.median > 0:
        yield (
            f"{_ROLLOUT}.scripted_lengths.median: with {_MULTI_TURN}.enable a turn must end where the policy ends it; "
            "set it to 0"
        )
