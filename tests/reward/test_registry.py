from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from verl_core.config.schema.reward import CustomRewardConfig, RewardConfig
from verl_core.errors import RewardError
from verl_core.reward.registry import check_sources, known_sources, register_reward, reward_for

HERE = Path(__file__).parent
USER = str(HERE / "user_rewards.py")


def custom(path: str, name: str = "compute_score") -> RewardConfig:
    return RewardConfig(custom_reward_function=CustomRewardConfig(path, name))


def constant(data_source: str, solution_str: str, ground_truth: Any, extra_info: dict[str, Any]) -> float:
    return 1.0


def another(data_source: str, solution_str: str, ground_truth: Any, extra_info: dict[str, Any]) -> float:
    return 2.0


def test_the_longest_fitting_pattern_wins() -> None:
    register_reward("test_family/")(constant)
    register_reward("test_family/special")(another)
    assert reward_for("test_family/x", RewardConfig()) is constant
    assert reward_for("test_family/special", RewardConfig()) is another
    with pytest.raises(RewardError):
        reward_for("test_family", RewardConfig())  # the prefix is with its slash


def test_a_pattern_belongs_to_one_function() -> None:
    register_reward("test_owned")(constant)
    register_reward("test_owned")(constant)  # the same again is fine: modules may be imported twice
    with pytest.raises(RewardError, match="test_owned"):
        register_reward("test_owned")(another)
    with pytest.raises(RewardError, match="prefix"):
        register_reward("")(constant)


def test_unknown_source_lists_the_known_and_the_nearest() -> None:
    with pytest.raises(RewardError) as caught:
        check_sources(["one_digit_sums", "one_digit_sum"])
    text = str(caught.value)
    assert "'one_digit_sum'" in text
    assert "Did you mean 'one_digit_sums'?" in text
    assert "reward.custom_reward_function.path" in text
    assert all(source in text for source in known_sources())


def test_known_sources_of_a_dataset_pass() -> None:
    check_sources(["one_digit_sums", "gsm8k", "reasoning_gym/chain_sum", "reasoning_gym_lenient/chain_sum"])


def test_unknown_task_of_a_known_family() -> None:
    with pytest.raises(RewardError, match=r"no task 'chain_sums'.*did you mean chain_sum"):
        check_sources(["reasoning_gym/chain_sums"])


def test_a_users_function_scores_every_source() -> None:
    by_file = reward_for("anything", custom(USER))
    assert by_file("s", "abcd", None, {})["score"] == 4.0  # type: ignore[index]
    check_sources(["anything", "else"], custom(USER))


def test_a_users_function_by_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(HERE))
    assert reward_for("x", custom("user_rewards", "slow")).__module__ == "user_rewards"


@pytest.mark.parametrize(
    ("path", "name", "said"),
    [
        ("nowhere.py", "compute_score", "does not exist"),
        ("no_such_module_here", "compute_score", "cannot be imported"),
        (USER, "compute_scores", "has no 'compute_scores'.*compute_score"),
        (USER, "not_a_function", "plain function"),
        (USER, "asynchronous", "not async"),
        (USER, "other_names", r"compute_score\(data_source, solution_str"),
    ],
)
def test_loading_errors_say_what_to_do(path: str, name: str, said: str) -> None:
    with pytest.raises(RewardError, match=said):
        check_sources(["x"], custom(path, name))


def test_a_file_that_fails_on_import(tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("raise RuntimeError('half done')\n")
    with pytest.raises(RewardError, match=r"importing .*broken.py failed: RuntimeError: half done"):
        check_sources(["x"], custom(str(broken)))
