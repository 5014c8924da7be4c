"""Off-policy correction: literal loops, hand numbers at and around every threshold, exact expectations, and what must
not change the result."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.algorithms.test_enumeration import EVERYWHERE, log_probs, probability, reward, weights
from verl_core.algorithms.advantages import ADVANTAGES, AdvantageInputs
from verl_core.algorithms.correction import Corrected, correct
from verl_core.algorithms.correction.diagnostics import effect, mismatch
from verl_core.config.schema import RolloutCorrectionConfig
from verl_core.config.schema.correction import PRESETS
from verl_core.config.thresholds import REJECTIONS, rejections_of, weight_band

NAN = math.nan
LOG = math.log


def config(**fields: object) -> RolloutCorrectionConfig:
    return RolloutCorrectionConfig(**fields)  # type: ignore[arg-type]


def one_row(*ratios: float, **fields: object) -> Corrected:
    """r = pi / pi_rollout of each token of a row."""
    log_ratio = torch.tensor([ratios], dtype=torch.float64).log()
    return correct(log_ratio, torch.ones(1, len(ratios)).bool(), config(**fields))


@pytest.mark.parametrize(
    ("fields", "ratios", "expected"),
    [
        ({"rollout_is": "token"}, [0.5, 1.9, 2.1], [0.5, 1.9, 2.0]),
        ({"rollout_is": "token", "rollout_is_threshold": "5"}, [4.9, 5.1], [4.9, 5.0]),
        ({"rollout_is": "token", "rollout_is_threshold": "0.5_2"}, [0.49, 0.51, 1.99, 2.01], [0, 0.51, 1.99, 0]),
        ({"rollout_is": "sequence"}, [0.5, 3.0], [1.5, 1.5]),
        ({"rollout_is": "sequence"}, [2.0, 2.0], [2.0, 2.0]),  # the product 4 is capped
        ({"rollout_is": "sequence", "rollout_is_threshold": "0.5_2"}, [2.0, 2.0], [0.0, 0.0]),
        ({"rollout_is": "token", "rollout_is_batch_normalize": True}, [0.5, 1.5, 4.0], [0.375, 1.125, 1.5]),  # mean 4/3
    ],
)
def test_weights_by_hand(fields: dict[str, object], ratios: list[float], expected: list[float]) -> None:
    got = one_row(*ratios, **fields)
    assert got.weights is not None
    assert got.weights[0].tolist() == pytest.approx(expected, rel=1e-6)
    assert got.keep.all()  # a weight of 0 does not reject: the token stays in the denominators


def k1(ratio: float) -> float:
    return -LOG(ratio)


def k2(ratio: float) -> float:
    return LOG(ratio) ** 2 / 2


def k3(ratio: float) -> float:
    return ratio - 1 - LOG(ratio)


@pytest.mark.parametrize(
    ("rule", "threshold", "ratios", "keep"),
    [
        # k1 bounds pi_rollout / pi: 0.5 to 2 keeps r from 0.5 to 2.
        ("token_k1", "0.5_2.0", [0.501, 0.499, 1.999, 2.001], [1, 0, 1, 0]),
        ("token_k1", 2.0, [0.501, 0.499, 1.999, 2.001], [1, 0, 1, 0]),  # a single h is 1/h to h
        ("token_k1", "0.9_4", [0.251, 0.249, 1.11, 1.12], [1, 0, 1, 0]),  # 1 / r up to 4, down to 0.9
        ("token_k2", k2(2), [1.99, 0.51, 2.01, 0.49], [1, 1, 0, 0]),
        ("token_k3", k3(2), [1.99, 2.01, 1.0], [1, 0, 1]),
        ("seq_sum_k1", "0.5_2.0", [3.0, 0.6], [1, 1]),  # product 1.8
        ("seq_sum_k1", "0.5_2.0", [3.0, 0.7], [0, 0]),  # product 2.1
        ("seq_mean_k1", "0.5_2.0", [3.0, 1.3], [1, 1]),  # geometric mean sqrt(3.9) < 2
        ("seq_mean_k1", "0.5_2.0", [3.0, 1.4], [0, 0]),  # sqrt(4.2) > 2
        ("seq_sum_k2", 0.5, [math.e**0.7, math.e**0.7], [1, 1]),  # 0.49
        ("seq_sum_k2", 0.5, [math.e**0.7, math.e**0.75], [0, 0]),  # 0.245 + 0.281
        ("seq_mean_k2", 0.25, [math.e**0.7, math.e**0.7], [1, 1]),
        ("seq_mean_k2", 0.24, [math.e**0.7, math.e**0.7], [0, 0]),
        ("seq_max_k2", k2(2), [1.0, 1.99], [1, 1]),
        ("seq_max_k2", k2(2), [1.0, 2.01], [0, 0]),
        ("seq_sum_k3", k3(2) + k3(0.5), [1.99, 0.51], [1, 1]),
        ("seq_sum_k3", k3(2) + k3(0.5), [2.01, 0.49], [0, 0]),
        ("seq_mean_k3", 0.01, [1.15, 0.9], [1, 1]),  # (0.01024 + 0.00536) / 2
        ("seq_mean_k3", 0.01, [1.25, 0.9], [0, 0]),  # (0.02686 + 0.00536) / 2
        ("seq_max_k3", 0.01, [1.15, 0.9], [0, 0]),
        # Two rules, both must hold.
        ("token_k1, seq_max_k2", "2.0,10", [0.499, 1.0], [0, 1]),
    ],
)
def test_rejection_by_hand(rule: str, threshold: float | str, ratios: list[float], keep: list[int]) -> None:
    got = one_row(*ratios, rollout_rs=rule, rollout_rs_threshold=threshold)
    assert got.keep[0].int().tolist() == keep
    assert got.weights is None


def test_statistics_see_rejected_tokens_and_weights_are_normalised_over_kept_ones() -> None:
    # Token rule drops r = 4; the sequence weight is still the product of all: 0.5 x 4 = 2. Then mean over rows = 1.
    got = one_row(
        0.5, 4.0, rollout_is="sequence", rollout_is_threshold=3.0, rollout_is_batch_normalize=True,
        rollout_rs="token_k1", rollout_rs_threshold=3.0,
    )  # fmt: skip
    assert got.keep.tolist() == [[True, False]]
    assert got.raw is not None
    assert got.raw[0].tolist() == pytest.approx([2.0, 2.0])
    assert got.weights is not None
    assert got.weights.tolist() == [[1.0, 1.0]]


@st.composite
def cases(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor, RolloutCorrectionConfig]:
    rows, width = draw(st.integers(1, 6)), draw(st.integers(1, 5))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**20)))
    mask = torch.rand(rows, width, generator=generator) < draw(st.sampled_from([0.3, 0.8, 1.0]))
    spread = draw(st.sampled_from([0.05, 0.5, 30.0]))  # 30: beyond every clamp
    log_ratio = torch.where(mask, spread * torch.randn(rows, width, generator=generator), NAN)
    rules = draw(st.lists(st.sampled_from(REJECTIONS), min_size=0, max_size=3, unique=True))
    bound = draw(st.sampled_from([1.05, 1.5]))
    level = draw(st.sampled_from([None, "token", "sequence"]))
    return (
        log_ratio,
        mask,
        config(
            rollout_is=level,
            rollout_is_threshold=draw(st.sampled_from([1.2, "0.8_1.2"])),
            rollout_is_batch_normalize=draw(st.booleans()) if level else False,
            rollout_rs=",".join(rules) or None,
            rollout_rs_threshold=bound if rules else None,
        ),
    )


def literal_keep(log_ratio: list[float], rule: str, bound: float) -> list[bool]:
    """The rule on the tokens of one row."""
    level, kind = rule.rsplit("_", 1)
    capped = [max(-20.0, min(20.0, x)) for x in log_ratio]
    values = {
        "k1": [-x for x in log_ratio],
        "k2": [x * x / 2 for x in log_ratio],
        "k3": [math.exp(c) - 1 - x for c, x in zip(capped, log_ratio, strict=True)],
    }[kind]
    low, high = (-LOG(bound), LOG(bound)) if kind == "k1" else (-math.inf, bound)
    if level == "token":
        return [low <= value <= high for value in values]
    total = {"seq_sum": sum(values), "seq_mean": sum(values) / len(values), "seq_max": max(values)}[level]
    return [low <= total <= high] * len(values)


def literal(
    log_ratio: torch.Tensor, mask: torch.Tensor, settings_: RolloutCorrectionConfig
) -> tuple[list[list[bool]], list[list[float]]]:
    rules = (settings_.rollout_rs or "").split(",") if settings_.rollout_rs else []
    keep = [[False] * mask.shape[1] for _ in mask]
    weight = [[0.0] * mask.shape[1] for _ in mask]
    for row in range(len(mask)):
        places = [t for t in range(mask.shape[1]) if mask[row, t]]
        if not places:
            continue
        xs = [float(log_ratio[row, t]) for t in places]
        verdicts = [literal_keep(xs, rule, float(settings_.rollout_rs_threshold or 0)) for rule in rules]
        for number, t in enumerate(places):
            keep[row][t] = all(verdict[number] for verdict in verdicts)
            x = sum(xs) if settings_.rollout_is == "sequence" else xs[number]
            w = math.exp(max(-20.0, min(20.0, x)))
            if settings_.rollout_is_threshold == 1.2:
                w = min(w, 1.2)
            elif not 0.8 <= w <= 1.2:
                w = 0.0
            weight[row][t] = w
    if settings_.rollout_is_batch_normalize:
        kept_rows = [[weight[row][t] for t in range(mask.shape[1]) if keep[row][t]] for row in range(len(mask))]
        kept_rows = [row for row in kept_rows if row]
        every = [w for row in kept_rows for w in row]
        numbers = [row[0] for row in kept_rows] if settings_.rollout_is == "sequence" else every
        mean = sum(numbers) / len(numbers) if numbers else 0.0
        weight = [[w / mean for w in row] for row in weight] if mean > 0 else weight
    return keep, weight


@settings(max_examples=300, deadline=None)
@given(case=cases())
def test_equals_the_literal_loop(case: tuple[torch.Tensor, torch.Tensor, RolloutCorrectionConfig]) -> None:
    log_ratio, mask, settings_ = case
    got = correct(log_ratio.double(), mask, settings_)
    keep, weight = literal(log_ratio, mask, settings_)
    assert got.keep.tolist() == keep
    if settings_.rollout_is is None:
        assert got.weights is None
    else:
        assert got.weights is not None
        torch.testing.assert_close(got.weights.double(), torch.tensor(weight).double(), rtol=1e-4, atol=1e-6)


@settings(max_examples=100, deadline=None)
@given(case=cases(), seed=st.integers(0, 99))
def test_order_padding_and_splits_change_nothing(
    case: tuple[torch.Tensor, torch.Tensor, RolloutCorrectionConfig], seed: int
) -> None:
    log_ratio, mask, settings_ = case
    whole = correct(log_ratio, mask, settings_)
    order = torch.randperm(len(mask), generator=torch.Generator().manual_seed(seed))
    # Batch normalisation is over the whole batch; everything else may be cut.
    chunks = [order] if settings_.rollout_is_batch_normalize else list(order.split(2))
    for rows in chunks:
        wide = torch.cat([log_ratio[rows], torch.full((len(rows), 2), NAN)], dim=1)
        more = torch.cat([mask[rows], torch.zeros(len(rows), 2).bool()], dim=1)
        part = correct(wide, more, settings_)
        assert torch.equal(part.keep[:, :-2], whole.keep[rows])
        assert not part.keep[:, -2:].any()
        if part.weights is not None and whole.weights is not None:
            torch.testing.assert_close(part.weights[:, :-2], whole.weights[rows], rtol=1e-6, atol=1e-7)
            assert not part.weights[:, -2:].any()


def test_sequence_weights_turn_an_expectation_under_the_rollout_into_one_under_the_policy() -> None:
    rollout, old = weights(1), weights(1) + 0.3 * weights(2)
    log_ratio = log_probs(old) - log_probs(rollout)
    got = correct(log_ratio, EVERYWHERE, config(rollout_is="sequence", rollout_is_threshold=1e9))
    assert got.weights is not None
    under_rollout = (probability(rollout) * got.weights[:, 0] * reward()).sum()
    torch.testing.assert_close(under_rollout, (probability(old) * reward()).sum(), rtol=1e-5, atol=1e-8)
    # Token weights do the same for a quantity of one token, and not for one of the sequence.
    first = correct(log_ratio, EVERYWHERE, config(rollout_is="token", rollout_is_threshold=1e9)).weights
    assert first is not None
    start = reward()[::9].repeat_interleave(9)  # depends on the first token only
    torch.testing.assert_close(
        (probability(rollout) * first[:, 0] * start).sum(), (probability(old) * start).sum(), rtol=1e-5, atol=1e-8
    )
    assert abs((probability(rollout) * first[:, 0] * reward()).sum() - (probability(old) * reward()).sum()) > 1e-3


def test_diagnostics_are_the_distances_they_name() -> None:
    rollout, old = weights(1), weights(1) + 0.3 * weights(2)
    p, q = probability(rollout), probability(old)
    exact = float((p * (p / q).log()).sum()) / 3  # KL(rollout, old) per token
    # A batch in which every sequence appears as often as the rollout draws it, to one in 50,000.
    counts = (p * 50_000).round().long()
    rows = torch.arange(27).repeat_interleave(counts)
    mask = torch.ones(len(rows), 3).bool()
    told = mismatch(log_probs(old)[rows], log_probs(rollout)[rows], mask)
    assert told["rollout_corr/kl"] == pytest.approx(exact, rel=1e-2)
    assert told["rollout_corr/k3_kl"] == pytest.approx(exact, rel=1e-2)
    assert told["rollout_corr/chi2_seq"] == pytest.approx(float((q * q / p).sum()) - 1, rel=1e-2)
    assert told["rollout_corr/log_ppl_diff"] == pytest.approx(exact, rel=1e-2)
    assert mismatch(torch.zeros(1, 1), torch.zeros(1, 1), torch.zeros(1, 1).bool()) == {}


def test_what_was_done_is_told() -> None:
    got = one_row(0.5, 1.0, 4.0, 9.0, rollout_is="token", rollout_rs="token_k1", rollout_rs_threshold=5.0)
    told = {name.removeprefix("rollout_corr/"): value for name, value in effect(got, torch.ones(1, 4).bool()).items()}
    # Kept 0.5, 1, 4 -> weights 0.5, 1, 2: sum 3.5, squares 5.25.
    assert told == pytest.approx(
        {
            "rejected_token_share": 0.25,
            "rejected_row_share": 0.0,
            "rollout_is_mean": 3.5 / 3,
            "rollout_is_max": 2.0,
            "rollout_is_raw_max": 4.0,
            "rollout_is_changed_share": 1 / 3,
            "rollout_is_eff_sample_size": 3.5**2 / (3 * 5.25),
        },
        rel=1e-5,
    )


def test_normalised_weights_are_not_held_by_a_threshold_that_they_never_met() -> None:
    settings_ = {"rollout_is": "token", "rollout_is_batch_normalize": True}
    for ratios, share in [((1.1, 0.9, 1.2), 0.0), ((1.1, 0.9, 4.0), 1 / 3)]:
        told = effect(one_row(*ratios, **settings_), torch.ones(1, 3).bool())
        assert told["rollout_corr/rollout_is_changed_share"] == pytest.approx(share)


def test_a_rejected_session_that_stays_in_the_baseline_keeps_its_weight_there() -> None:
    """Scores 1, 0, 1; the third is rejected. Among three the baseline is 2/3, among the two that are kept 1/2."""
    own, settings_ = (
        torch.ones(3, 1).bool(),
        config(rollout_is="token", rollout_is_threshold=1.0, rollout_rs="token_k1", rollout_rs_threshold=2.0),
    )
    got = correct(torch.tensor([[0.0], [0.0], [3.0]]), own, settings_)
    for rows, expected in (("all", [1 / 3, -2 / 3, 0.0]), ("kept", [0.5, -0.5, 0.0])):
        found = ADVANTAGES.get("optimal_token_baseline")(
            AdvantageInputs(
                torch.tensor([[1.0], [0.0], [1.0]]),
                got.keep,
                torch.zeros(3).long(),
                sampled=own,
                baseline_rows=rows,
                is_weights=got.weights,
                old_log_probs=torch.full((3, 1), -1.0),
                sum_pi_squared=torch.full((3, 1), 0.5),
            )
        )
        assert found.advantages[:, 0].tolist() == pytest.approx(expected, abs=1e-6)


def test_a_token_infinitely_far_away_is_rejected() -> None:
    for far in (math.inf, -math.inf, 1e30, -1e30):
        got = correct(
            torch.tensor([[far, 0.0]]),
            torch.ones(1, 2).bool(),
            config(rollout_rs="seq_mean_k3", rollout_rs_threshold=0.01),
        )
        assert not got.keep.any(), far


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_can_be_used(name: str) -> None:
    holds = config(preset=name, baseline_rows="all").effective
    assert holds.preset == ""
    assert holds.baseline_rows == "all"
    assert holds.bypass_mode == name.startswith("bypass")
    assert (holds.loss_type == "reinforce") == ("_pg_" in name)
    assert (holds.rollout_rs is not None) == name.endswith(("rs", "rs_seq_tis", "rs_token_tis"))
    got = correct(torch.zeros(2, 3), torch.ones(2, 3).bool(), holds)
    assert got.keep.all()  # on policy nothing is rejected
    assert got.weights is None or torch.equal(got.weights, torch.ones(2, 3))


def test_thresholds_that_cannot_be_read() -> None:
    for written, message in [("a", "must be a number"), ("2_1", "lower bound comes first"), (0.55, "at least 1")]:
        with pytest.raises(ValueError, match=message):
            weight_band(written)
    for rules, threshold, message in [
        ("token_k4", 1.0, "unknown statistic 'token_k4'"),
        ("seq_max_k1", 1.0, "unknown statistic 'seq_max_k1'"),
        ("token_k1", None, "has no threshold"),
        ("token_k1,token_k2,token_k3", "1,2", "2 thresholds for 3 statistics"),
        ("token_k2", "0.1_0.2", "has an upper bound only"),
        ("token_k1", 0.5, "at least 1"),
        ("token_k2,token_k2", 1.0, "named twice"),
    ]:
        with pytest.raises(ValueError, match=message):
            rejections_of(rules, threshold)
