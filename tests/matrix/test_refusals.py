"""Every cell of the matrix is accepted, or refused with a message that names one of its parts. Which ones are refused
is written down a second time here, as sentences about the combination."""

from __future__ import annotations

import pytest

from tests.matrix.cells import PRESET, WRITTEN, Cell, every_cell
from verl_core.config.schema.correction import PRESETS

EVERY = 101  # of the default tier; prime to every dimension


def expected(cell: Cell) -> set[str]:
    """Keys that a refusal of this cell starts with; empty = it is accepted."""
    found: set[str] = set()
    bypass = cell.correction.startswith("bypass")
    reinforce = PRESETS[cell.correction].get("loss_type") == "reinforce"
    if cell.estimator == "gae" and cell.critic is False:
        found.add("critic.enable")  # values from nobody
    if cell.estimator != "gae" and cell.critic is True:
        found.add("critic.enable")  # values for nobody
    if cell.estimator == "gdpo" and cell.kl == "in_reward":
        found.add("algorithm.use_kl_in_reward")  # gdpo reads the parts of the score, the KL would be lost
    if cell.estimator.endswith("optimal_token_baseline") and bypass:
        found.add("algorithm.adv_estimator")  # no old policy, no squared probabilities
    if reinforce and cell.loss != "vanilla":
        found.add("actor_rollout_ref.actor.policy_loss.loss_mode")  # REINFORCE is the loss
    if reinforce and cell.loss == "dro":
        found.add("actor_rollout_ref.actor.policy_loss.dro_beta")
    if bypass and cell.loss in ("gspo", "geo_mean") and cell.mode != "sync":
        found.add("actor_rollout_ref.actor.policy_loss.loss_mode")  # one ratio over several old policies
    return found


def check(cells: list[Cell]) -> tuple[int, int]:
    """(accepted, refused), every cell as expected."""
    wrong, refused = [], 0
    for cell in cells:
        _, problems = cell.config()
        keys = {problem.partition(":")[0] for problem in problems}
        refused += bool(keys)
        if keys != expected(cell):
            wrong.append((cell.name, sorted(keys), sorted(expected(cell)), problems))
    assert not wrong, wrong[:5]
    return len(cells) - refused, refused


def test_a_part_of_the_matrix_is_accepted_or_refused_for_a_reason() -> None:
    accepted, refused = check(list(every_cell())[::EVERY])
    assert accepted > 100
    assert refused > 100


@pytest.mark.slow
def test_the_whole_matrix_is_accepted_or_refused_for_a_reason() -> None:
    cells = list(every_cell())
    accepted, refused = check(cells)
    assert accepted + refused == len(cells) == 13 * 11 * len(PRESETS) * 3 * 3 * 3


def test_a_message_names_what_to_change() -> None:
    for cell in list(every_cell())[::1009]:
        for problem in cell.config()[1]:
            key = problem.partition(":")[0]
            assert key in (*WRITTEN, PRESET)
            assert len(problem) > len(key) + 40
