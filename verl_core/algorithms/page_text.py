"""What docs/algorithms.md says beside the docstrings. Invariant: no formula of a single algorithm stands here."""

from __future__ import annotations

HEAD = """
# Algorithms

What runs, exactly. This page is built from the docstrings of `verl_core/algorithms` (`make algorithms-page`); a
test holds it to them. Every formula is tested against a slow literal loop, at hand numbers on both sides of every
bound, and, where it promises an expectation, against the exact one over all sequences of a small vocabulary
(`tests/algorithms/`). `make oracle` compares with TRL and torchrl.

Words: a *group* is one prompt served once, with `n` *sessions*; a session yields one or several *outputs* (rows). R
is the outcome of a session, A an advantage, pi the current policy, pi_old the frozen policy of the step, pi_rollout
what the engine sampled with, l = log(pi / pi_old), r = e^l with l clamped to +-20, where the gradient stops. What is
added up along a row is float32, means and deviations over rows are float64 (of the two token baselines: float32). A
cell that is not a token of the policy (padding, prompt, tool text) is never read, whatever it holds.
"""

SESSIONS = """
A session counts once, however many outputs it has: its score is that of its last output, its outcome the sum of its
token rewards (score, and the KL when that is paid in the reward), and its advantage holds for all of its outputs.
In estimators with a time axis the outputs follow each other. verl does this for grpo only; its other estimators
take every output for a sample of its own.

Rows without an outcome (a quarantined reward, padding) take part in nothing and get 0. Rows rejected by the
off-policy correction leave the statistics of their group too, unless `algorithm.rollout_correction.baseline_rows:
all` (verl's behaviour) keeps them in; the reward of a single rejected token still counts in its row's outcome.

Estimators that compare the sessions of a group refuse `rollout.n: 1`. When rejection leaves a lone session, its
definition says what it gets.
"""

LOSSES = """
Values are per token; `loss_agg_mode` makes one number of them, for every loss. So no micro-batch size and no number
of ranks changes a step. In the decoupled off-policy correction each token's value is multiplied with its weight.
"""

VALUES = """
Of the critic, which exists where the estimator reads `values` (`algorithm.adv_estimator: gae`); [critic.md](critic.md)
has the whole of it. V of token t is the value of the state before t is sampled.
"""

KL = """
`algorithm.kl_penalty` (KL in the reward) and `actor.kl_loss_type` (KL in the loss), with x = log pi(a) - log
ref(a). A name with a trailing `+` has the value of its base and the gradient of k2, whose expected gradient is that
of the KL itself: k1's is 0, k3's is that of the KL in the other direction. Source: Schulman 2020, "Approximating KL
divergence"; Tang and Munos 2025, arXiv 2506.09477.
"""

DISTILLATION = """
On-policy distillation (`distillation.enabled: true`): teachers give the log-probs of what the policy sampled;
[distillation.md](distillation.md) has the whole of it. With `use_policy_gradient: false` the distance is a loss and the
gradient goes through it; masks, aggregation and denominators are those of the policy loss, and the loss of an update is
[policy loss, with `use_task_rewards`] + `distillation_loss_coef` x distance. With `use_policy_gradient: true` the
distance under pi_old is taken off the advantages.
"""

CORRECTION = """
The engine that samples and the trainer do not compute the same probabilities: other kernels, other precision, in
asynchronous modes other weights. `algorithm.rollout_correction` says what is done about it.

- *Decoupled* (default): three policies. pi_old is computed by the trainer, once, before the update; the loss
  compares pi with pi_old; weights and rejection are of pi_old / pi_rollout, over the whole batch. With neither,
  only the distances are reported (`rollout_corr/*`).
- *Bypass* (`bypass_mode: true`): two policies. The engine's log-probs are pi_old and nothing is recomputed.
  Rejection, and with `loss_type: reinforce` the weights, are of pi / pi_rollout while training. How many tokens
  stay is known after the last micro-batch; gradients are scaled then, so that here too rejected tokens leave every
  denominator.

Rejected tokens leave the response mask, hence the loss, its denominators and the KL and entropy terms (verl keeps
them in the denominator of token-mean). A weight of 0 (IcePop) does not reject: its token stays in the denominators.
Where nothing is set, a mode that may train on older weights takes `decoupled_token_is`; verl takes nothing.
verl's V1 trainer reads none of this in bypass mode unless the loss is set by hand too; here it is one section that
every process reads.
"""

RECIPES: dict[str, tuple[str, str]] = {
    "Dr. GRPO": (
        "No division by the deviation, and a constant in place of the length (Liu et al. 2025, arXiv 2503.20783).",
        """
algorithm:
  adv_estimator: grpo
  norm_adv_by_std_in_grpo: false
actor_rollout_ref:
  actor:
    loss_agg_mode: seq-mean-token-sum-norm     # loss_scale_factor: null = data.max_response_length
""",
    ),
    "DAPO": (
        "A wider upper clip, every token of the batch the same weight, groups that do not differ replaced, and less "
        "reward for over-long responses (Yu et al. 2025, arXiv 2503.14476); see [rewards.md](rewards.md).",
        """
algorithm:
  adv_estimator: grpo
  filter_groups:
    enable: true
    metric: acc
    max_num_gen_batches: 10
actor_rollout_ref:
  actor:
    clip_ratio_low: 0.2
    clip_ratio_high: 0.28
    loss_agg_mode: token-mean
reward:
  overlong_buffer:
    enable: true
    len: 64
""",
    ),
    "GSPO": (
        "One ratio per response; its clip range is of another size than that of PPO.",
        """
actor_rollout_ref:
  actor:
    policy_loss:
      loss_mode: gspo
    clip_ratio_low: 3e-4
    clip_ratio_high: 4e-4
    loss_agg_mode: seq-mean-token-mean
""",
    ),
    "CISPO": (
        "Only the upper bound of the weight is in force.",
        """
actor_rollout_ref:
  actor:
    policy_loss:
      loss_mode: cispo
    clip_ratio_low: 1.0
    clip_ratio_high: 4.0
""",
    ),
    "RLOO": (
        "Unbiased policy gradient; with one update per step (`ppo_mini_batch_size` = `data.train_batch_size`) the "
        "plain loss is enough.",
        """
algorithm:
  adv_estimator: rloo
actor_rollout_ref:
  actor:
    ppo_mini_batch_size: ${data.train_batch_size}
    policy_loss:
      loss_mode: gpg
    loss_agg_mode: seq-mean-token-sum
""",
    ),
    "REINFORCE++": (
        "With the KL in the reward, as in its paper.",
        """
algorithm:
  adv_estimator: reinforce_plus_plus
  use_kl_in_reward: true
""",
    ),
    "PPO": (
        "With a critic, which follows from the estimator; `critic.*` has its settings.",
        """
algorithm:
  adv_estimator: gae
  lam: 0.95
trainer:
  critic_warmup: 5
critic:
  optim:
    lr: 1e-5
""",
    ),
    "GPG": (
        "Estimator and loss of the same name.",
        """
algorithm:
  adv_estimator: gpg
actor_rollout_ref:
  actor:
    policy_loss:
      loss_mode: gpg
""",
    ),
    "Truncated importance sampling": (
        "Against the mismatch of engine and trainer.",
        """
algorithm:
  rollout_correction:
    preset: decoupled_token_is
""",
    ),
}
