"""`make oracle`: the algorithms beside TRL's and torchrl's on the same numbers, out/oracle.json.

Runs in out/oracle-venv, which reads the project's packages and adds the peers' without their dependencies: the
project's own environment never changes. Invariant: a difference between definitions (epsilons, what a bound means) is
removed by the arguments or stated in the item's note, never by a wider goal.
"""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import torch

from benchmarks.goals import Goal, report
from verl_core.algorithms.advantages import ADVANTAGES, AdvantageInputs
from verl_core.algorithms.aggregation import Denominators, aggregate
from verl_core.algorithms.kl import kl_penalty
from verl_core.algorithms.policy_losses import POLICY_LOSSES, PolicyLossInputs

ROWS, WIDTH, GOAL = 24, 17, 1e-5
Item = tuple[str, float, str]


def difference(one: torch.Tensor, other: torch.Tensor) -> float:
    """Largest absolute difference."""
    return float((one.double() - other.double()).abs().max())


def cells(seed: int) -> dict[str, torch.Tensor]:
    """Log-probs of three policies, advantages per row and a right-padded mask; float32 [ROWS, WIDTH]."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, WIDTH + 1, (ROWS, 1), generator=generator)
    old = -torch.rand(ROWS, WIDTH, generator=generator) * 3
    noise = torch.randn(2, ROWS, WIDTH, generator=generator) * 0.3
    return {
        "old": old,
        "new": old + noise[0],
        "ref": old + noise[1],
        "advantages": torch.randn(ROWS, 1, generator=generator),
        "mask": torch.arange(WIDTH)[None, :] < lengths,
    }


def trl_loss(data: dict[str, torch.Tensor], **settings: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Loss and its gradient to the log-probs, by GRPOTrainer._compute_loss on a stand-in for the trainer."""
    from trl import GRPOTrainer

    new = data["new"].clone().requires_grad_()
    ids = torch.zeros(ROWS, WIDTH, dtype=torch.long)
    accelerator = SimpleNamespace(
        num_processes=1, gather=lambda x: x, gather_for_metrics=lambda x: x, reduce=lambda x, reduction: x
    )
    sink: dict[str, Any] = {"train": _Sink(), "eval": _Sink()}
    trainer = SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *_, **__: (new, torch.zeros_like(new), None),
        aux_loss_enabled=False,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        importance_sampling_level="token",
        beta=0.0,
        epsilon_low=0.2,
        epsilon_high=0.3,
        use_vllm=False,
        vllm_importance_sampling_correction=False,
        _entropy_bonus_enabled=False,
        model=SimpleNamespace(training=False),
        accelerator=accelerator,
        max_completion_length=WIDTH,
        _metrics=sink,
        args=SimpleNamespace(
            delta=None, use_bias_correction_kl=False, sapo_temperature_pos=1.0, sapo_temperature_neg=1.05
        ),
    )
    for name, value in settings.items():
        target = trainer.args if hasattr(trainer.args, name) else trainer
        setattr(target, name, value)
    mask = data["mask"].float()
    inputs = {
        "prompt_ids": ids[:, :1],
        "prompt_mask": ids[:, :1] + 1,
        "completion_ids": ids,
        "completion_mask": mask,
        "advantages": data["advantages"][:, 0],
        "old_per_token_logps": data["old"],
        "ref_per_token_logps": data["ref"],
        "num_items_in_batch": mask.sum(),
    }
    loss = GRPOTrainer._compute_loss(trainer, None, inputs)
    return loss.detach(), torch.autograd.grad(loss, new)[0]


class _Sink(dict[str, list[Any]]):
    def __missing__(self, key: str) -> list[Any]:
        return self.setdefault(key, [])


def our_loss(
    data: dict[str, torch.Tensor], name: str, mode: str, kl: float = 0.0, **settings: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same of this project."""
    new, mask = data["new"].clone().requires_grad_(), data["mask"]
    whole = Denominators.of(mask, scale=float(WIDTH))
    advantages = data["advantages"].expand_as(new)
    fields = {"clip_low": 0.2, "clip_high": 0.3, "clip_c": 1e9, **settings}
    inputs = PolicyLossInputs(new, data["old"], advantages, mask, **fields)
    loss = aggregate(POLICY_LOSSES.get(name)(inputs).per_token, mask, mode, whole)
    if kl:
        loss = loss + kl * aggregate(kl_penalty("k3", new, data["ref"], mask), mask, mode, whole)
    return loss.detach(), torch.autograd.grad(loss, new)[0]


ROW_MEAN, TOKEN_MEAN, NORM = "seq-mean-token-mean", "token-mean", "seq-mean-token-sum-norm"
LOSSES: dict[str, tuple[dict[str, Any], tuple[str, str], dict[str, Any]]] = {
    "grpo": ({"loss_type": "grpo"}, ("vanilla", ROW_MEAN), {}),
    "grpo with KL": ({"loss_type": "grpo", "beta": 0.1}, ("vanilla", ROW_MEAN), {"kl": 0.1}),
    "dapo": ({"loss_type": "dapo"}, ("vanilla", TOKEN_MEAN), {}),
    "dr_grpo": ({"loss_type": "dr_grpo"}, ("vanilla", NORM), {}),
    "gspo": ({"loss_type": "grpo", "importance_sampling_level": "sequence"}, ("gspo", ROW_MEAN), {}),
    "sapo": ({"loss_type": "sapo"}, ("sapo", ROW_MEAN), {}),
    # TRL's epsilon_high is the weight itself and there is no lower bound.
    "cispo": ({"loss_type": "cispo", "epsilon_high": 1.3}, ("cispo", TOKEN_MEAN), {"clip_low": 1.0}),
}


def losses() -> Iterator[Item]:
    """Loss and gradient of TRL's GRPOTrainer, the larger difference over five batches."""
    for name, (theirs, (loss, mode), ours) in LOSSES.items():
        worst = 0.0
        for seed in range(5):
            data = cells(seed)
            pairs = zip(trl_loss(data, **theirs), our_loss(data, loss, mode, **ours), strict=True)
            worst = max(worst, *(difference(one, other) for one, other in pairs))
        yield f"TRL loss: {name}", worst, "value and gradient"


def values() -> Iterator[Item]:
    """torchrl's GAE and reward-to-go on rows of one length; ours before whitening, as returns - values."""
    from torchrl.objectives.value.functional import generalized_advantage_estimate, reward2go

    generator = torch.Generator().manual_seed(0)
    rewards, value = torch.randn(2, ROWS, WIDTH, generator=generator)
    done = torch.zeros(ROWS, WIDTH, 1, dtype=torch.bool)
    done[:, -1] = True
    after = torch.cat([value[:, 1:], torch.zeros(ROWS, 1)], dim=1)
    for gamma, lam in ((1.0, 1.0), (0.99, 0.95), (0.9, 0.0)):
        group = torch.zeros(ROWS, dtype=torch.int64)
        given = AdvantageInputs(rewards, torch.ones(ROWS, WIDTH).bool(), group, gamma=gamma, lam=lam, values=value)
        theirs, target = generalized_advantage_estimate(
            gamma, lam, value[..., None], after[..., None], rewards[..., None], done, done
        )
        ours = ADVANTAGES.get("gae")(given).returns
        worst = max(difference(ours - value, theirs[..., 0]), difference(ours, target[..., 0]))
        yield f"torchrl GAE: gamma {gamma}, lambda {lam}", worst, "advantages and value targets"
        to_go = reward2go(rewards[..., None], done, gamma)[..., 0]
        ours = ADVANTAGES.get("reinforce_plus_plus")(given).returns
        yield f"torchrl reward to go: gamma {gamma}", difference(ours, to_go), ""


def main() -> None:
    """Compare, print the largest difference per item, write out/oracle.json."""
    warnings.filterwarnings("ignore")
    items: list[Item] = []
    parts: tuple[Callable[[], Iterator[Item]], ...] = (values, losses)
    with contextlib.redirect_stderr(io.StringIO()):  # the peers warn of versions that play no part here
        for part in parts:
            items += part()
    from importlib.metadata import version

    peers = {name: version(name) for name in ("trl", "torchrl", "torch")}
    goals = [Goal(name, value, "<=", GOAL) for name, value, _ in items]
    report("oracle.json", goals, {"peers": peers, "notes": {name: note for name, _, note in items if note}})


if __name__ == "__main__":
    main()
