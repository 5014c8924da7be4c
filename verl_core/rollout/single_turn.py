"""SingleTurnAgent: one prompt, one generation. Invariant: a response is never longer than data.max_response_length,
and only whole samples of the policy become trajectories."""

from __future__ import annotations

import numpy as np

from verl_core.config.schema import RunConfig
from verl_core.errors import RolloutError
from verl_core.rollout.agent_loop import register_agent_loop
from verl_core.rollout.generation import checked_generation, shortened
from verl_core.rollout.interface import Generation, LLMClient, SamplingParams
from verl_core.rollout.seeds import request_seed
from verl_core.trajectory import Prompt, Trajectory


@register_agent_loop("single_turn_agent")
class SingleTurnAgent:
    """AgentLoop of one generation per session."""

    def __init__(self, config: RunConfig) -> None:
        self._rollout = config.actor_rollout_ref.rollout
        self._max_response, self._max_model_len = config.data.max_response_length, config.max_model_len

    async def run(self, prompt: Prompt, session: int, client: LLMClient) -> list[Trajectory]:
        """One trajectory.

        Raises:
            RolloutError: the prompt fills the model's length, the engine's answer is malformed, or it was aborted.
        """
        params = self.sampling(prompt, session)
        generation = checked_generation(
            await client.generate(f"{prompt.uid}_{session}", prompt.token_ids.tolist(), params)
        )
        if generation.stop_reason == "abort":
            raise RolloutError(
                f"the generation was cut off after {len(generation.token_ids)} tokens; a part of a sample is no sample"
            )
        return [_trajectory(prompt, session, shortened(generation, self._max_response))]

    def sampling(self, prompt: Prompt, session: int) -> SamplingParams:
        """Parameters of the session: rollout.val_kwargs for prompts of the validation, else those of training. That a
        baseline is greedy is not for agent loops to know: whoever runs the group sees to it."""
        room = min(self._max_response, self._max_model_len - len(prompt.token_ids))
        if room < 1:
            raise RolloutError(
                f"the prompt has {len(prompt.token_ids)} tokens, max_model_len is {self._max_model_len}: no room for a "
                "response. Lower data.max_prompt_length or raise rollout.max_model_len."
            )
        source = self._rollout.val_kwargs if prompt.validation else self._rollout
        seed = request_seed(self._rollout.seed, prompt.uid, session)
        return SamplingParams(room, source.temperature, source.top_p, source.top_k, seed)


def _trajectory(prompt: Prompt, session: int, generation: Generation) -> Trajectory:
    return Trajectory(
        uid=prompt.uid,
        session=session,
        index=0,
        ordinal=prompt.ordinal,
        prompt_ids=prompt.token_ids.astype(np.int32, copy=False),
        response_ids=np.asarray(generation.token_ids, dtype=np.int32),
        response_mask=np.ones(len(generation.token_ids), dtype=np.bool_),
        rollout_log_probs=np.asarray(generation.log_probs, dtype=np.float32),
        segments=generation.segments,
        stop_reason=generation.stop_reason,
        data_source=prompt.data_source,
    )
