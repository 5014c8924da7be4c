"""ToolAgent: turns of the policy with answers of tools between them. Invariant: a session ends after at most
max_assistant_turns, within data.max_response_length tokens of turns and answers together, and always with a token that
the policy sampled: an answer that nobody could react to is not appended.

    turn -> no call           the session ends: `answer`
         -> calls             they are run, their answers follow, the next turn starts
         -> cut off           at its budget: `length`
    calls of the last turn    are not run: `max_assistant_turns`
    answers that do not fit   are not appended: `no_room`
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from verl_core.config.schema import RunConfig
from verl_core.data.chat import chat_tokenizer
from verl_core.data.tool_turn import ToolTurn
from verl_core.errors import RolloutError
from verl_core.rollout.agent_loop import register_agent_loop
from verl_core.rollout.conversation import Conversation
from verl_core.rollout.generation import checked_generation, shortened
from verl_core.rollout.interface import Generation, LLMClient, SamplingParams
from verl_core.rollout.seeds import request_seed
from verl_core.rollout.single_turn import SingleTurnAgent
from verl_core.tools.calls import CallRunner
from verl_core.tools.interface import Call, CallOutcome
from verl_core.tools.parsers import format_called
from verl_core.tools.registry import tools_of
from verl_core.trajectory import Prompt, StopReason, Trajectory

Ended = Literal["answer", "length", "max_assistant_turns", "no_room"]
EXTRA = "multi_turn"  # name in Trajectory.extra


@dataclass(slots=True)
class _Account:
    """What a session did, for reward functions and metrics."""

    turns: int = 0
    calls: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0

    def note(self, outcome: CallOutcome, text: str, cut: bool) -> None:
        """One call; `text` is what the model got."""
        entry = {"turn": self.turns, "name": outcome.name, "arguments": outcome.arguments}
        self.calls.append({**entry, "status": outcome.status, "text": text, "truncated": cut})
        self.seconds += outcome.seconds

    def as_extra(self, ended: Ended, last_turn: str) -> dict[str, Any]:
        """Plain JSON. `tool_s` is the one thing in a trajectory that another run does not repeat."""
        told = {"turns": self.turns, "ended": ended, "last_turn": last_turn, "calls": self.calls}
        return {EXTRA: {**told, "tool_s": round(self.seconds, 4)}}


@register_agent_loop("tool_agent")
class ToolAgent(SingleTurnAgent):
    """AgentLoop of several generations per session, tools between them.

    Raises:
        ConfigError: a tool cannot be built.
        ModelError: the model's chat template has no place for tools.
    """

    def __init__(self, config: RunConfig) -> None:
        super().__init__(config)
        self._settings = config.actor_rollout_ref.rollout.multi_turn
        self._tokenizer = chat_tokenizer(config)
        self._turn, self._format = ToolTurn(self._tokenizer), format_called(self._settings.format)
        tools = tools_of(self._settings)
        self._runner = CallRunner(tools, self._settings.max_parallel_calls, self._settings.tool_timeout_s)

    async def run(self, prompt: Prompt, session: int, client: LLMClient) -> list[Trajectory]:
        """One trajectory of all turns.

        Raises:
            RolloutError: the prompt fills the model's length, an engine's answer is malformed, or it was aborted.
        """
        first = self.sampling(prompt, session)
        talk, account = Conversation(prompt, first.max_tokens), _Account()
        while True:
            turn = await self._generated(prompt, session, client, talk, first)
            talk.add_sampled(turn)
            account.turns += 1
            text = self._text(turn)
            calls = self._format.parse(text)
            ended = self._over(turn, calls, account.turns) or await self._answer(calls, talk, account)
            if ended:
                reason: StopReason = "stop" if ended in ("answer", "max_assistant_turns") else "length"
                return [talk.trajectory(session, reason, account.turns, account.as_extra(ended, text))]

    async def _generated(
        self, prompt: Prompt, session: int, client: LLMClient, talk: Conversation, first: SamplingParams
    ) -> Generation:
        """The next turn. Its seed depends on the tokens before it: a turn must not draw the noise of an earlier one."""
        room = min(talk.room, self._settings.max_turn_length or talk.room)
        seed = request_seed(self._rollout.seed, prompt.uid, session, talk.length)
        found = await client.generate(f"{prompt.uid}_{session}", talk.ids, replace(first, max_tokens=room, seed=seed))
        turn = checked_generation(found)
        if turn.stop_reason == "abort":
            raise RolloutError(
                f"a turn was cut off after {len(turn.token_ids)} tokens; a part of a sample is no sample"
            )
        return shortened(turn, room)

    def _text(self, turn: Generation) -> str:
        """A turn without the token that ended it; calls may be written with special tokens, so these stay."""
        ids = turn.token_ids[:-1] if turn.stop_reason == "stop" else turn.token_ids
        return self._tokenizer.decode(ids, skip_special_tokens=False)

    def _over(self, turn: Generation, calls: Sequence[Call], turns: int) -> Ended | None:
        """Why the session ends with this turn, before any call is run."""
        if turn.stop_reason == "length":
            return "length"
        if not calls:
            return "answer"
        return "max_assistant_turns" if turns >= self._settings.max_assistant_turns else None

    async def _answer(self, calls: Sequence[Call], talk: Conversation, account: _Account) -> Ended | None:
        """Run the calls and append their answers, if a next turn then has at least one token of room."""
        limit, side = self._settings.max_tool_response_length, self._settings.tool_response_truncate_side
        texts = []
        for outcome in await self._runner.run(calls):
            text, cut = self._turn.fitted(outcome.text, limit, side)
            account.note(outcome, text, cut)
            texts.append(text)
        ids = self._turn.ids(texts)
        if len(ids) >= talk.room:
            return "no_room"
        talk.add_answers(ids)
        return None
