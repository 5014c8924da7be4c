"""ModelScorer: a reward model as the Scorer of a run, alone or as a named part beside others.

Invariant: the ids that are scored are those that were sampled, prompt and response, unless the model has another
vocabulary: then the chat and the decoded response go through the model's own template, the one place where a response
becomes text and ids again. A model that shares its devices is on them only while it scores.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from verl_core.config.schema.reward import RewardConfig
from verl_core.data.reward_tokenizer import answered_chat
from verl_core.data.tokenizer import ChatTokenizer
from verl_core.errors import DataError
from verl_core.reward.budget import check_budget, failures_allowed
from verl_core.reward.composite import combined, no_parts, parts_of
from verl_core.reward.interface import Sample, Scorer
from verl_core.reward.model_group import Failure, Outcome, RewardModelGroup
from verl_core.reward.scoring import Unscorable, judged, quarantined
from verl_core.trajectory import Int32, Reward


class ModelScorer:
    """Implements Scorer.

    Args:
        group: the model's workers.
        rules: scores the other parts, and validation where the model does not; None = there are none.
        reader: the model's tokenizer where it is not the policy's.
    """

    def __init__(
        self, config: RewardConfig, group: RewardModelGroup, rules: Scorer | None, reader: ChatTokenizer | None
    ) -> None:
        self._config, self._group, self._rules, self._reader = config, group, rules, reader
        self._parts = [part for part in parts_of(config) if part.reward_model]

    @property
    def for_validation(self) -> Scorer:
        """Who scores validation: this one, or the rules alone."""
        if self._config.reward_model.in_validation or self._rules is None:
            return self
        return self._rules

    def score(self, samples: Sequence[Sample]) -> list[Reward]:
        """See Scorer."""
        rewards = self._scored(samples, failures_allowed(len(samples), self._config.error_budget))
        check_budget(rewards, self._config.error_budget)
        return rewards

    def score_each(self, samples: Sequence[Sample]) -> list[Reward]:
        """See Scorer. Raises as `RewardModelGroup.score`."""
        return self._scored(samples, None)

    def shutdown(self) -> None:
        """See Scorer."""
        try:
            self._group.shutdown()
        finally:
            if self._rules is not None:
                self._rules.shutdown()

    def _scored(self, samples: Sequence[Sample], most_failures: int | None) -> list[Reward]:
        """The rules first, for they need no device. `most_failures`: see `RewardModelGroup.score`; None also asks the
        rules for all, whatever fails."""
        if not samples:
            return []
        if not self._parts:
            return self._by_the_model(samples, most_failures)
        if self._rules is None:
            near = no_parts(samples)
        else:
            ask = self._rules.score_each if most_failures is None else self._rules.score
            near = ask([replace(sample, tokens=None) for sample in samples])
        far = self._by_the_model(samples, most_failures)
        return [self._joined(*pair) for pair in zip(near, far, strict=True)]

    def _by_the_model(self, samples: Sequence[Sample], most_failures: int | None) -> list[Reward]:
        rows: list[Int32] = []
        outcomes: list[Outcome | None] = []
        for sample in samples:
            try:
                rows.append(self._ids(sample))
                outcomes.append(None)
            except DataError as error:
                outcomes.append(Failure("raised", str(error)))
        with self._awake():
            scored = iter(self._group.score(rows, most_failures))
        return [
            _reward(sample, next(scored) if outcome is None else outcome)
            for sample, outcome in zip(samples, outcomes, strict=True)
        ]

    def _ids(self, sample: Sample) -> Int32:
        tokens = sample.tokens
        if tokens is None:
            raise DataError("the sample carries no token ids")
        if self._reader is not None:
            return answered_chat(self._reader, tokens.messages, sample.solution, sample.key)
        return np.concatenate([tokens.prompt_ids, tokens.response_ids])

    @contextmanager
    def _awake(self) -> Iterator[None]:
        """The model on its devices; those that it shares are given back whatever happens."""
        if self._config.reward_model.enable_resource_pool:
            yield
            return
        self._group.wake()
        try:
            yield
        finally:
            self._group.sleep()

    def _joined(self, near: Reward, far: Reward) -> Reward:
        if near.quarantined:
            return near
        try:
            total = combined([(part, far) for part in self._parts])
        except Unscorable as error:
            return quarantined(near.key, error.status, str(error))
        return judged(near.key, {**near.components, **total, "score": near.score + total["score"]})


def _reward(sample: Sample, outcome: Outcome) -> Reward:
    if isinstance(outcome, Failure):
        return quarantined(sample.key, outcome.status, outcome.reason)
    return judged(sample.key, outcome)
