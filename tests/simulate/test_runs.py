"""Whole simulated runs against schedules worked out by hand, and the product's own laws over them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.simulate.devices import ServerSpeed, TrainerSpeed
from benchmarks.simulate.lengths import Empirical, LogNormal
from benchmarks.simulate.run import Outcome, Setup, simulate

# One server, one token a second for everybody; training takes 1 s a token (of responses: prompts are empty).
TINY = Setup(
    mode="sync",
    lengths=Empirical(((2,), (6,), (3,), (1,))),
    servers=1,
    server=ServerSpeed(t0=1.0),
    trainer=TrainerSpeed(token_s=1.0),
    batch_size=2,
    n=1,
    steps=2,
    threshold=None,
    strategy="off",
)


def test_sync_waits_for_the_longest() -> None:
    # Step 1: lengths 2 and 6: 6 s, then 8 s of training: 14. Step 2: 3 and 1: 3 s and 4 s: 21.
    outcome = simulate(TINY)
    assert outcome.closed_at == pytest.approx((14.0, 21.0))
    assert outcome.staleness == (0.0, 0.0)


def test_colocate_async_takes_whoever_is_first_and_resumes_the_rest() -> None:
    # All four are served at 0 (one batch ahead). 1 and 2 tokens end at 1 s and 2 s: step 1 has them, and trains for 3 s
    # while the others stand still with 2 tokens each: closed at 5. Under version 1 the third has 1 token to go, the
    # long one 4: step 2 samples until 9 and trains 9 s. Both began under version 0.
    outcome = simulate(replace(TINY, mode="colocate_async", warmup=1.0))
    assert outcome.closed_at == pytest.approx((5.0, 18.0))
    assert outcome.staleness == (0.0, 1.0)
    assert outcome.cut_tokens == 4


def test_separate_async_goes_on_while_training_runs() -> None:
    # As before, but the servers never stop: step 1 samples until 2 and trains until 5; at 5 the third is there (3 s)
    # and the long one has 5 tokens, one to go: step 2 samples until 6 and trains 9 s.
    outcome = simulate(replace(TINY, mode="separate_async", warmup=1.0))
    assert outcome.closed_at == pytest.approx((5.0, 15.0))
    assert outcome.staleness == (0.0, 1.0)
    assert outcome.rollout_busy_s == pytest.approx(6.0)
    assert outcome.train_busy_s == pytest.approx(12.0)


def test_a_switch_of_weights_loses_the_token_under_way() -> None:
    # Version 1 is received from 5 to 5.5 while the long one goes on; it is cut at 5.5 with 5 tokens, stands still for
    # 0.25 s, and needs one token more: 6.75. Nothing else is sampled, so step 2 trains from there.
    speed = replace(TINY.trainer, publish_s=0.5, switch_s=0.25)
    outcome = simulate(replace(TINY, mode="separate_async", warmup=1.0, trainer=speed))
    assert outcome.closed_at[1] == pytest.approx(6.75 + 9.0 + 0.5 + 0.25)


def test_costs_of_taking_turns() -> None:
    # sync again: a step also pays for sleep and what does not depend on tokens, 2.5 s, and from the second on for the
    # publication before it and waking, 1.25 s.
    speed = replace(TINY.trainer, sleep_s=0.5, publish_s=1.0, wake_s=0.25, step_s=2.0)
    outcome = simulate(replace(TINY, trainer=speed))
    assert outcome.closed_at == pytest.approx((14.0 + 2.5, 21.0 + 5.0 + 1.25))


LOGNORMAL = LogNormal(600, 4800, 9600)


def wide(mode: str, **changes: object) -> Outcome:
    setup = Setup(
        mode, LOGNORMAL, 4, ServerSpeed(0.01, 5e-5), TrainerSpeed(1e-4, 8, publish_s=1.0), 32, 2, 16, grain=256
    )
    return simulate(replace(setup, **changes))  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", ["sync", "colocate_async", "separate_async"])
def test_a_run_is_a_function_of_its_setup(mode: str) -> None:
    first, second = wide(mode), wide(mode)
    assert (first.closed_at, first.staleness, first.tokens) == (second.closed_at, second.staleness, second.tokens)
    assert wide(mode, seed=1).closed_at != first.closed_at


@pytest.mark.parametrize("mode", ["sync", "colocate_async", "separate_async"])
def test_every_group_is_accounted_for(mode: str) -> None:
    outcome = wide(mode, threshold=2)
    accounts = outcome.accounting
    assert accounts.balanced
    assert accounts.trained == 16 * 32
    assert accounts.served == accounts.trained + sum(accounts.dropped.values())
    assert (sum(accounts.dropped.values()) > 0) == (mode != "sync")


@pytest.mark.parametrize("mode", ["colocate_async", "separate_async"])
@pytest.mark.parametrize("strategy", ["wait", "drop"])
def test_the_bound_holds(mode: str, strategy: str) -> None:
    outcome = wide(mode, strategy=strategy, threshold=1)
    assert max(outcome.staleness_max) <= 1


def test_lengths_do_not_depend_on_the_mode() -> None:
    runs = [wide(mode, threshold=None).lengths for mode in ("sync", "colocate_async", "separate_async")]
    assert runs[0] == runs[1] == runs[2]
    assert len(runs[0]) == 16 * 32


def test_tokens_are_those_of_the_lengths() -> None:
    outcome = wide("colocate_async", threshold=None)
    assert outcome.tokens == sum(sum(lengths) for lengths in outcome.lengths.values())
