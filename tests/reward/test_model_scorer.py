"""A reward model as a Scorer: what it reads, what is joined to it, and when it is on the device."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from verl_core.config.schema import RewardConfig, RewardModelConfig
from verl_core.data.tokenizer import ChatTokenizer
from verl_core.errors import RewardError
from verl_core.reward.interface import Sample, SampleTokens, Scorer
from verl_core.reward.model_group import Failure, Outcome, RewardModelGroup
from verl_core.reward.model_scorer import ModelScorer
from verl_core.trajectory import Int32, Reward

CHAT = [{"role": "user", "content": "3+4="}]
PART = {"name": "liked", "reward_model": True, "weight": 0.5}


class Group:
    """Notes what it is asked; scores the sum of the ids unless `answers` say otherwise."""

    def __init__(self, answers: Sequence[Outcome] | None = None) -> None:
        self.said: list[str] = []
        self.rows: list[list[int]] = []
        self.told: list[int | None] = []
        self._answers = answers

    def wake(self) -> None:
        self.said.append("wake")

    def sleep(self) -> None:
        self.said.append("sleep")

    def score(self, rows: Sequence[Int32], most_failures: int | None = None) -> list[Outcome]:
        self.said.append("score")
        self.told.append(most_failures)
        self.rows += [row.tolist() for row in rows]
        return list(self._answers) if self._answers is not None else [float(row.sum()) for row in rows]

    def shutdown(self) -> None:
        self.said.append("shutdown")


class Rules:
    """1.0 for everything, with a part; no ids may reach it."""

    def score_each(self, samples: Sequence[Sample]) -> list[Reward]:
        assert all(sample.tokens is None for sample in samples)
        return [Reward(sample.key, 1.0, {"right": 1.0}) for sample in samples]

    score = score_each

    def shutdown(self) -> None:
        """Nothing."""


def scorer(
    group: Group, rules: Scorer | None = None, reader: ChatTokenizer | None = None, **settings: Any
) -> ModelScorer:
    beside = {name: settings.pop(name) for name in ("composite", "error_budget") if name in settings}
    config = RewardConfig(reward_model=RewardModelConfig(enable=True, **settings), **beside)
    return ModelScorer(config, cast(RewardModelGroup, group), rules, reader)


def sample(key: str, prompt: Sequence[int] = (1, 2), response: Sequence[int] = (3,), solution: str = "7") -> Sample:
    tokens = SampleTokens(np.asarray(prompt, np.int32), np.asarray(response, np.int32), CHAT)
    return Sample(key, "one_digit_sums", solution, "7", {}, tokens)


def test_the_sampled_ids_are_scored_as_they_are() -> None:
    group = Group()
    rewards = scorer(group, enable_resource_pool=True).score(
        [sample("a"), sample("b", (5,), (6, 7), "text that is not read")]
    )
    assert group.rows == [[1, 2, 3], [5, 6, 7]]
    assert [(one.key, one.score, one.status) for one in rewards] == [("a", 6.0, "ok"), ("b", 18.0, "ok")]
    assert group.said == ["score"]  # on devices of its own it stays


def test_one_that_shares_is_awake_only_while_it_scores() -> None:
    group = Group()
    scorer(group).score([sample("a")])
    assert group.said == ["wake", "score", "sleep"]

    class Broken(Group):
        def score(self, rows: Sequence[Int32], most_failures: int | None = None) -> list[Outcome]:
            raise RewardError("broken")

    broken = Broken()
    with pytest.raises(RewardError):
        scorer(broken).score([sample("a")])
    assert broken.said == ["wake", "sleep"]
    scorer(idle := Group()).score([])
    assert idle.said == []


def test_another_vocabulary_gets_the_chat_and_the_decoded_answer() -> None:
    asked: list[Any] = []

    def apply(chat: Any, **kwargs: Any) -> list[int]:
        asked.append((chat, kwargs))
        return [9, 9]

    reader = ChatTokenizer(SimpleNamespace(apply_chat_template=apply), "other")
    group = Group()
    scorer(group, reader=reader).score([sample("a")])
    assert group.rows == [[9, 9]]
    assert asked == [([*CHAT, {"role": "assistant", "content": "7"}], {"tokenize": True, "return_dict": False})]


def test_failures_are_quarantined_and_counted() -> None:
    answers: list[Outcome] = [1.0, float("nan"), Failure("timeout", "no score within 1 s")]
    rewards = scorer(Group(answers)).score_each([sample(key) for key in "abc"])
    assert [(one.score, one.status) for one in rewards] == [(1.0, "ok"), (0.0, "not_finite"), (0.0, "timeout")]
    with pytest.raises(RewardError, match="2 of 3 samples could not be scored"):
        scorer(Group(answers)).score([sample(key) for key in "abc"])


def test_it_is_a_named_part_beside_rules() -> None:
    composite = [{"name": "right", "verifier": "row"}, PART]
    (reward,) = scorer(Group(), Rules(), composite=composite).score([sample("a")])
    assert (reward.score, reward.components) == (1.0 + 0.5 * 6.0, {"right": 1.0, "liked": 6.0})
    failed = scorer(Group([Failure("raised", "no")]), Rules(), composite=composite).score_each([sample("a")])
    assert (failed[0].status, failed[0].reason) == ("raised", "part 'liked': no")
    (alone,) = scorer(Group(), composite=[PART]).score([sample("a")])
    assert (alone.score, alone.components) == (3.0, {"liked": 6.0})


def test_once_the_budget_is_gone_the_model_is_not_asked() -> None:
    class Strict(Rules):
        def score(self, samples: Sequence[Sample]) -> list[Reward]:
            raise RewardError("the rules failed too often")

    composite = [{"name": "right", "verifier": "row"}, PART]
    group, three = Group(), [sample(key) for key in "abc"]
    with pytest.raises(RewardError, match="the rules failed too often"):
        scorer(group, Strict(), composite=composite).score(three)
    assert group.said == []  # it was not even woken
    scorer(group, Strict(), composite=composite).score_each(three)
    scorer(group, error_budget=0.7).score(three)
    assert group.told == [None, 2]  # 0.7 of three


def test_who_validates() -> None:
    rules = Rules()
    both = scorer(Group(), rules)
    assert both.for_validation is both
    assert scorer(Group(), rules, in_validation=False).for_validation is rules
