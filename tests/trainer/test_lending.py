"""Lending by hand: threshold, gain against cost, hysteresis, and a state that survives."""

from __future__ import annotations

import json

import pytest

from verl_core.config.schema import HybridRolloutConfig
from verl_core.trainer.lending import Decision, Lending


def lending(**settings: object) -> Lending:
    config = HybridRolloutConfig(enable_switch=True, **settings)  # type: ignore[arg-type]
    return Lending(config, rollout_devices=2, trainer_devices=6, batch=32, mini_batch=8)


@pytest.mark.parametrize(("ratio", "groups"), [(0.4, 13), (0.1, 8), (1.0, 32), (0.75, 24)])
def test_the_threshold_is_a_share_of_the_batch_but_a_mini_batch_at_least(ratio: float, groups: int) -> None:
    assert lending(switch_threshold_ratio=ratio).threshold == groups


def test_what_was_not_measured_is_tried() -> None:
    assert lending().decide(ready=0) == Decision(True, None, None)


def test_nothing_is_lent_when_the_groups_are_there() -> None:
    assert lending().decide(ready=13) == Decision(False, 0.0, None)


def test_gain_is_weighed_against_cost() -> None:
    case = lending(adaptive_switch_threshold=False)
    case.waited(20.0, missing=10)  # 2 s a group
    case.switched(True, 3.0)
    case.switched(False, 1.0)
    # 13 - 8 = 5 groups, 10 s; six of eight devices more take three quarters of that away: 7.5 s against 4 s
    assert case.decide(ready=8) == Decision(True, 7.5, 4.0)
    # two groups: 4 s x 0.75 = 3 s against 4 s
    assert case.decide(ready=11) == Decision(False, 3.0, 4.0)


def test_only_the_newest_switches_count() -> None:
    case = lending(switch_cost_window_size=2)
    for seconds in (100.0, 1.0, 3.0):
        case.switched(True, seconds)
    case.switched(False, 5.0)
    assert case.decide(ready=0).cost_s == pytest.approx(2.0 + 5.0)


def test_the_share_moves_after_some_steps_in_a_row_and_stays_in_its_bounds() -> None:
    case = lending(switch_threshold_ratio=0.5, switch_threshold_release_steps=2)
    ratios = []
    for missing in (4, 4, 4, 0, 0, 0, 4, 0):
        case.waited(1.0, missing)
        ratios.append(round(case.state.ratio, 2))
    # one step of waiting changes nothing; a change of direction starts to count anew
    assert ratios == [0.5, 0.55, 0.6, 0.6, 0.57, 0.54, 0.54, 0.54]
    for _ in range(40):
        case.waited(1.0, 3)
    assert case.state.ratio == 1.0
    for _ in range(80):
        case.waited(0.0, 0)
    assert case.state.ratio == pytest.approx(0.25)  # a mini-batch of eight in thirty-two


def test_a_fixed_share_does_not_move() -> None:
    case = lending(adaptive_switch_threshold=False)
    for _ in range(10):
        case.waited(1.0, 3)
    assert case.threshold == 13


def test_the_state_survives_a_checkpoint() -> None:
    case, other = lending(), lending()
    case.waited(6.0, 3)
    case.switched(True, 1.0)
    case.switched(False, 2.0)
    other.load_state_dict(json.loads(json.dumps(case.state_dict())))
    assert other.decide(ready=1) == case.decide(ready=1)
    assert other.state == case.state
