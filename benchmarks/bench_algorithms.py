"""`make bench-algorithms`: the advantage and loss code beside verl 0.9.1's on the same tensors.

Runs in out/verl-venv, which reads the project's packages and adds verl without its dependencies: the project's own
environment never changes. Invariant: both sides get the same 4,096 rows of 1,024 tokens in the form that they are given
in a run (verl: a float mask and the uids as objects; ours: a bool mask and the uids as text, numbered inside the
measured time), take turns, and for losses both make the value, their metrics and the gradient.
"""

from __future__ import annotations

import logging
import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from benchmarks.goals import Goal, report
from verl_core.algorithms.advantages import ADVANTAGES, AdvantageInputs
from verl_core.algorithms.aggregation import Denominators, aggregate
from verl_core.algorithms.correction import correct
from verl_core.algorithms.kl import kl_penalty
from verl_core.algorithms.policy_losses import POLICY_LOSSES, PolicyLossInputs
from verl_core.algorithms.policy_losses.covariance import MARKINGS, MarkInputs
from verl_core.algorithms.value_loss import value_loss
from verl_core.config.schema import RolloutCorrectionConfig

ROWS, WIDTH, SIBLINGS = 4096, 1024, 8
TURNS = 15
OF_GROUPS = ("grpo", "grpo_passk", "gdpo", "reinforce_plus_plus_baseline", "rloo", "opo")
OTHERS = ("gae", "reinforce_plus_plus", "remax", "gpg", "optimal_token_baseline", "tir_optimal_token_baseline")
LOSSES = ("vanilla", "gspo", "sapo", "gpg", "clip_cov", "kl_cov", "geo_mean", "dppo_tv", "dppo_kl", "dro", "cispo")
Run = Callable[[], torch.Tensor]


@dataclass(frozen=True)
class Cells:
    """The tensors of both sides; float32 [ROWS, WIDTH] where nothing else is said.

    Attributes:
        mask: bool, right-padded, log-normal lengths.
        weight: the same as float32.
        rewards: the score on the last token of each row.
        uids: object [ROWS], eight rows to a prompt, shuffled.
    """

    mask: torch.Tensor
    weight: torch.Tensor
    rewards: torch.Tensor
    old: torch.Tensor
    new: torch.Tensor
    rollout: torch.Tensor
    values: torch.Tensor
    advantages: torch.Tensor
    squared: torch.Tensor
    greedy: torch.Tensor
    uids: np.ndarray[Any, Any]

    @classmethod
    def drawn(cls) -> Cells:
        """One fixed draw."""
        draw = torch.Generator().manual_seed(0)
        lengths = (torch.randn(ROWS, 1, generator=draw).exp() * 300).clamp(1, WIDTH).long()
        mask = torch.arange(WIDTH)[None, :] < lengths
        scores = (torch.rand(ROWS, generator=draw) < 0.5).float()
        rewards = torch.zeros(ROWS, WIDTH)
        rewards[torch.arange(ROWS), lengths[:, 0] - 1] = scores
        old = -torch.rand(ROWS, WIDTH, generator=draw) * 3
        near, far = torch.randn(2, ROWS, WIDTH, generator=draw)
        names = np.repeat([f"prompt-{i}" for i in range(ROWS // SIBLINGS)], SIBLINGS).astype(object)
        return cls(
            mask=mask,
            weight=mask.float(),
            rewards=rewards,
            old=old,
            new=old + 0.1 * near,
            rollout=old + 0.05 * far,
            values=0.3 * torch.randn(ROWS, WIDTH, generator=draw),
            advantages=torch.where(mask, torch.randn(ROWS, 1, generator=draw), 0.0),
            squared=torch.rand(ROWS, WIDTH, generator=draw),
            greedy=(torch.rand(ROWS, generator=draw) < 0.5).float(),
            uids=np.random.default_rng(0).permutation(names),
        )


def our_advantages(name: str, cells: Cells) -> Run:
    """The registered estimator, uids numbered first."""
    parts = cells.rewards.sum(dim=1)[:, None] * torch.tensor([1.0, 0.5]) if name == "gdpo" else None

    def run() -> torch.Tensor:
        _, numbers = np.unique(cells.uids.astype(str), return_inverse=True)
        inputs = AdvantageInputs(
            token_rewards=cells.rewards,
            mask=cells.mask,
            group_index=torch.from_numpy(numbers),
            values=cells.values if name == "gae" else None,
            lam=0.95,
            greedy_rewards=cells.greedy,
            reward_parts=parts,
            old_log_probs=cells.old,
            sum_pi_squared=cells.squared,
        )
        return ADVANTAGES.get(name)(inputs).advantages

    return run


def their_advantages(name: str, cells: Cells) -> Run:
    """verl's estimator of the same name."""
    from verl.trainer.config import AlgoConfig
    from verl.trainer.ppo import core_algos

    estimator = core_algos.get_adv_estimator_fn(name)
    given: dict[str, Any] = {"token_level_rewards": cells.rewards, "response_mask": cells.weight}
    if name == "gae":
        given |= {"values": cells.values, "gamma": 1.0, "lam": 0.95}
    else:
        given |= {"index": cells.uids, "config": AlgoConfig(gamma=1.0)}
    if name == "remax":
        given["reward_baselines"] = cells.greedy
    if name.endswith("token_baseline"):
        given |= {"old_log_probs": cells.old, "sum_pi_squared": cells.squared}
    if name == "gdpo":
        scores = cells.rewards.sum(dim=1).numpy()
        given["config"] = {"gdpo_reward_keys": ["one", "two"]}
        given["non_tensor_batch"] = {"one": scores, "two": scores * 0.5}
        prompts = torch.ones(ROWS, 1, dtype=torch.int64)
        given["batch"] = {"prompts": prompts, "attention_mask": torch.cat([prompts, cells.mask.long()], dim=1)}
    return lambda: estimator(**given)[0]


def our_loss(name: str, cells: Cells, whole: Denominators) -> Run:
    """Value, metrics and gradient; the marking of a mini-batch too, where a loss needs it."""
    settings: dict[str, Any] = {"dro_beta": 0.1} if name == "dro" else {}
    tokens = cells.old[cells.mask], cells.advantages[cells.mask]  # a mini-batch comes packed to the marking
    present = cells.mask.numpy()

    def run() -> torch.Tensor:
        new = cells.new.clone().requires_grad_()
        marked = None
        if name in MARKINGS.names():
            marked = torch.zeros_like(cells.mask)
            marked.numpy()[present] = MARKINGS.get(name)(MarkInputs(*tokens, ratio=2e-4)).numpy()
        inputs = PolicyLossInputs(new, cells.old, cells.advantages, cells.mask, marked=marked, **settings)
        loss = POLICY_LOSSES.get(name)(inputs)
        aggregate(loss.per_token, cells.mask, "token-mean", whole).backward()
        _ = {key: float(value) for key, value in loss.sums.items()}
        return _gradient(new)

    return run


def their_loss(name: str, cells: Cells, whole: Denominators) -> Run:
    """verl's, with the global token count that it is given in a run."""
    from verl.trainer.ppo import core_algos
    from verl.workers.config import ActorConfig
    from verl.workers.config.actor import PolicyLossConfig

    settings = PolicyLossConfig(loss_mode=name, **({"dro_beta": 0.1} if name == "dro" else {}))
    config = ActorConfig(strategy="fsdp", rollout_n=SIBLINGS, ppo_micro_batch_size_per_gpu=1, policy_loss=settings)
    config.global_batch_info.update({"dp_size": 1, "batch_num_tokens": whole.tokens, "global_batch_size": whole.rows})
    function = core_algos.get_policy_loss_fn(name)

    def run() -> torch.Tensor:
        new = cells.new.clone().requires_grad_()
        loss, _ = function(cells.old, new, cells.advantages, cells.weight, loss_agg_mode="token-mean", config=config)
        loss.backward()
        return _gradient(new)

    return run


def other_pairs(cells: Cells, whole: Denominators) -> dict[str, tuple[Run, Run]]:
    """The critic's loss, a KL loss and a correction, (ours, verl's) by name."""
    from verl.trainer.ppo import core_algos
    from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_rejection_mask

    returns = cells.values + cells.advantages
    config = RolloutCorrectionConfig(rollout_is="token", rollout_rs="seq_mean_k1", rollout_rs_threshold="0.5_2.0")

    def critic_ours() -> torch.Tensor:
        new = cells.new.clone().requires_grad_()
        loss = value_loss(new, cells.values, returns, cells.mask, 0.5)
        aggregate(loss.per_token, cells.mask, "token-mean", whole).backward()
        return _gradient(new)

    def critic_theirs() -> torch.Tensor:
        new = cells.new.clone().requires_grad_()
        loss, _ = core_algos.compute_value_loss(
            new, returns, cells.values, cells.weight, 0.5, batch_num_tokens=whole.tokens
        )
        loss.backward()
        return _gradient(new)

    def kl_ours() -> torch.Tensor:
        new = cells.new.clone().requires_grad_()
        aggregate(kl_penalty("k3+", new, cells.old, cells.mask), cells.mask, "token-mean", whole).backward()
        return _gradient(new)

    def kl_theirs() -> torch.Tensor:
        new = cells.new.clone().requires_grad_()
        penalty = core_algos.kl_penalty(new, cells.old, "k3+")
        core_algos.agg_loss(penalty, cells.weight, "token-mean", batch_num_tokens=whole.tokens).backward()
        return _gradient(new)

    def correction_ours() -> torch.Tensor:
        found = correct(cells.old - cells.rollout, cells.mask, config).weights
        return torch.zeros(()) if found is None else found

    def correction_theirs() -> torch.Tensor:
        weights, kept, _ = compute_rollout_correction_and_rejection_mask(
            cells.old, cells.rollout, cells.weight, "token", 2.0, False, "seq_mean_k1", "0.5_2.0"
        )
        return weights.batch["rollout_is_weights"] * kept

    return {
        "critic": (critic_ours, critic_theirs),
        "kl k3+": (kl_ours, kl_theirs),
        "correction": (correction_ours, correction_theirs),
    }


def _gradient(leaf: torch.Tensor) -> torch.Tensor:
    if leaf.grad is None:
        raise RuntimeError("the loss gave no gradient")
    return leaf.grad


def seconds(run: Run) -> float:
    """Wall time of one call."""
    begun = time.perf_counter()
    run()
    return time.perf_counter() - begun


def compared(ours: Run, theirs: Run) -> dict[str, float]:
    """Medians over turns after one call of each that is not counted, and the largest difference of the two results."""
    difference = float((ours().double() - theirs().double()).abs().max())
    turns = [(seconds(ours), seconds(theirs)) for _ in range(TURNS)]
    mine, peer = (statistics.median(column) for column in zip(*turns, strict=True))
    return {"ours_ms": 1e3 * mine, "verl_ms": 1e3 * peer, "ratio": mine / peer, "largest_difference": difference}


def main() -> None:
    """Measure every item, print it, write the ratios with their goals."""
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    cells = Cells.drawn()
    whole = Denominators.of(cells.mask)
    pairs: dict[str, tuple[Run, Run]] = {}
    for name in (*OF_GROUPS, *OTHERS):
        pairs[name] = (our_advantages(name, cells), their_advantages(name, cells))
    for name in LOSSES:
        pairs[f"loss {name}"] = (our_loss(name, cells, whole), their_loss(name, cells, whole))
    pairs |= other_pairs(cells, whole)
    items = {}
    for name, pair in pairs.items():
        items[name] = compared(*pair)
        print(name, {key: float(f"{value:.3g}") for key, value in items[name].items()}, flush=True)
    goals = [Goal(name, item["ratio"], "<=", 0.5 if name in OF_GROUPS else 1.0) for name, item in items.items()]
    report(
        "bench_algorithms.json",
        goals,
        {"rows": ROWS, "width": WIDTH, "threads": torch.get_num_threads(), "items": items},
    )


if __name__ == "__main__":
    main()
