"""The tokenizer of a run. Invariant: prompts are rendered with the tools that the agent answers for, and a chat
template that cannot speak of them is refused before Ray starts."""

from __future__ import annotations

from verl_core.config.schema import RunConfig
from verl_core.data.tokenizer import ChatTokenizer, load_tokenizer
from verl_core.data.tool_turn import ToolTurn
from verl_core.tools.interface import schema_of
from verl_core.tools.registry import tools_of


def chat_tokenizer(config: RunConfig) -> ChatTokenizer:
    """Tokenizer of actor_rollout_ref.model.path, with the schemas of the run's tools.

    Raises:
        ModelError: folder or template cannot be used.
        ConfigError: a tool cannot be imported or built.
    """
    plain = load_tokenizer(config.actor_rollout_ref.model.path)
    settings = config.actor_rollout_ref.rollout.multi_turn
    if not settings.enable:
        return plain
    tokenizer = with_tools(config, plain)
    ToolTurn(tokenizer)
    return tokenizer


def with_tools(config: RunConfig, tokenizer: ChatTokenizer) -> ChatTokenizer:
    """The same tokenizer, rendering the schemas of the run's tools; itself without multi_turn.enable."""
    settings = config.actor_rollout_ref.rollout.multi_turn
    if not settings.enable:
        return tokenizer
    schemas = [schema_of(tool) for tool in tools_of(settings).values()]
    return ChatTokenizer(tokenizer.inner, tokenizer.name, schemas)
