"""Distances to a teacher: exact enumeration over a tiny vocabulary, a literal loop, hand numbers, invariances."""

from __future__ import annotations

import dataclasses
import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from verl_core.algorithms.aggregation import Denominators, aggregate
from verl_core.algorithms.distillation import DISTILLATION_LOSSES, DistillationInputs, distillation_advantages
from verl_core.config import names

NAN, V = math.nan, 5
TAILS = ("bucket", "renormalise", "drop")


def two_policies(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """(logits of the policy with gradient, log-probs of the teacher), float64 [V]."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(V, dtype=torch.float64, generator=generator).requires_grad_()
    return logits, torch.log_softmax(1.5 * torch.randn(V, dtype=torch.float64, generator=generator), dim=-1)


def one_place(log_p: torch.Tensor, teacher: torch.Tensor, topk: int, tail: str) -> DistillationInputs:
    ids = teacher.argsort(descending=True)[:topk]
    return DistillationInputs(
        log_p[:1][None], teacher[:1][None], torch.ones(1, 1, dtype=torch.bool), log_p[ids][None, None],
        teacher[ids][None, None], tail,
    )  # fmt: skip


def gradient(loss: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    return torch.autograd.grad(loss, logits, retain_graph=True)[0]


def test_the_names_are_those_of_the_configuration() -> None:
    assert set(DISTILLATION_LOSSES.names()) == set(names.DISTILLATION_LOSSES)


@pytest.mark.parametrize("tail", TAILS)
def test_all_tokens_as_candidates_give_the_forward_kl_and_its_gradient(tail: str) -> None:
    logits, teacher = two_policies()
    log_p = torch.log_softmax(logits, dim=-1)
    loss = DISTILLATION_LOSSES.get("forward_kl_topk")(one_place(log_p, teacher, V, tail)).per_token.sum()
    exact = (teacher.exp() * (teacher - log_p)).sum()
    assert loss.item() == pytest.approx(exact.item(), abs=1e-9)
    torch.testing.assert_close(gradient(loss, logits), log_p.detach().exp() - teacher.exp(), atol=1e-6, rtol=0)


def test_the_bucket_is_a_lower_bound_that_grows_with_k() -> None:
    for seed in range(5):
        logits, teacher = two_policies(seed)
        log_p = torch.log_softmax(logits, dim=-1)
        loss = DISTILLATION_LOSSES.get("forward_kl_topk")
        found = [
            float(loss(one_place(log_p.detach(), teacher, k, "bucket")).per_token.detach()) for k in range(1, V + 1)
        ]
        assert all(after >= before - 1e-9 for before, after in itertools.pairwise(found))
        assert found[0] >= 0


def test_hand_numbers() -> None:
    """p = (1/2, 1/4, 1/4), q = (1/4, 1/2, 1/4), the best two of p: P = 3/4, Q = 3/4."""
    p, q = torch.tensor([0.5, 0.25, 0.25]).log(), torch.tensor([0.25, 0.5, 0.25]).log()
    two = DistillationInputs(
        q[:1][None], p[:1][None], torch.ones(1, 1, dtype=torch.bool), q[None, None, :2], p[None, None, :2]
    )
    inside = 0.5 * math.log(2) - 0.25 * math.log(2)
    expected = {"drop": inside, "bucket": inside, "renormalise": inside / 0.75}
    for tail, value in expected.items():
        found = DISTILLATION_LOSSES.get("forward_kl_topk")(dataclasses.replace(two, tail=tail))
        assert float(found.per_token) == pytest.approx(value, abs=1e-6)
        assert float(found.sums["teacher_mass"]) == pytest.approx(0.75)
        assert float(found.sums["student_mass"]) == pytest.approx(0.75)
    bound = dataclasses.replace(two, tail="drop", clamp=0.1)
    assert float(DISTILLATION_LOSSES.get("forward_kl_topk")(bound).per_token) == pytest.approx(0.1)
    sampled = {"k1": -math.log(2), "abs": math.log(2), "k2": math.log(2) ** 2 / 2, "k3": 2 - 1 - math.log(2)}
    for name, value in sampled.items():  # x = log(1/4) - log(1/2)
        assert float(DISTILLATION_LOSSES.get(name)(two).per_token) == pytest.approx(value, abs=1e-6)
        assert float(distillation_advantages(name, two.log_probs, two.teacher_log_probs, two.mask)) == pytest.approx(
            -value, abs=1e-6
        )


def test_a_candidate_that_is_not_there_counts_for_nothing() -> None:
    logits, teacher = two_policies()
    log_p = torch.log_softmax(logits, dim=-1)
    for tail in TAILS:
        two, padded = one_place(log_p, teacher, 2, tail), one_place(log_p, teacher, 4, tail)
        assert padded.teacher_candidates is not None
        padded = dataclasses.replace(
            padded, teacher_candidates=padded.teacher_candidates.masked_fill(torch.arange(4) >= 2, -math.inf)
        )
        loss = DISTILLATION_LOSSES.get("forward_kl_topk")
        first, second = loss(two).per_token.sum(), loss(padded).per_token.sum()
        assert float(first) == pytest.approx(float(second))
        torch.testing.assert_close(gradient(first, logits), gradient(second, logits))


def enumerated(name: str, logits: torch.Tensor, teacher: torch.Tensor) -> tuple[float, torch.Tensor]:
    """(expected value, expected gradient) of a sampled loss, over every token a policy may draw."""
    log_p = torch.log_softmax(logits, dim=-1)
    value, slope = 0.0, torch.zeros(V, dtype=torch.float64)
    for token in range(V):
        inputs = DistillationInputs(log_p[token].reshape(1, 1), teacher[token].reshape(1, 1), torch.ones(1, 1).bool())
        loss = DISTILLATION_LOSSES.get(name)(inputs).per_token.sum()
        weight = float(log_p[token].exp().detach())
        value += weight * float(loss)
        slope += weight * torch.autograd.grad(loss, logits, retain_graph=True)[0]
    return value, slope


def reverse_kl(logits: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
    log_p = torch.log_softmax(logits, dim=-1)
    return (log_p.exp() * (log_p - teacher)).sum()


@pytest.mark.parametrize("name", ["k1", "k1+", "k3", "k3+", "k2", "k2+", "abs+"])
def test_expectations_over_all_tokens(name: str) -> None:
    """k1 and k3 have the value of the reverse KL; k2, and whatever is straight-through, its gradient; k3 alone the
    gradient of the forward KL, and k1 alone none."""
    logits, teacher = two_policies(3)
    value, slope = enumerated(name, logits, teacher)
    exact = reverse_kl(logits, teacher)
    if name[:2] in ("k1", "k3"):
        assert value == pytest.approx(float(exact), abs=1e-6)
    if name.endswith("+") or name == "k2":
        torch.testing.assert_close(slope, gradient(exact, logits), atol=1e-6, rtol=0)
    elif name == "k1":
        torch.testing.assert_close(slope, torch.zeros(V, dtype=torch.float64), atol=1e-6, rtol=0)
    else:
        torch.testing.assert_close(slope, torch.softmax(logits.detach(), -1) - teacher.exp(), atol=1e-6, rtol=0)


def test_the_reward_gives_the_gradient_of_the_reverse_kl() -> None:
    """Sum over tokens of pi A grad log pi, with A of k1, is minus the gradient of KL(pi, teacher)."""
    logits, teacher = two_policies(4)
    log_p = torch.log_softmax(logits, dim=-1)
    whole = torch.ones(1, V, dtype=torch.bool)
    advantages = distillation_advantages("k1", log_p.detach()[None], teacher[None], whole)[0]
    surrogate = (log_p.detach().exp() * advantages * log_p).sum()
    expected = gradient(reverse_kl(logits, teacher), logits)
    torch.testing.assert_close(gradient(surrogate, logits), -expected, atol=1e-6, rtol=0)


def literal(inputs: DistillationInputs, row: int, at: int) -> float:
    """The top-k loss of one token, in plain Python."""
    assert inputs.candidates is not None
    assert inputs.teacher_candidates is not None
    pairs = [
        (math.exp(t), math.exp(s))
        for t, s in zip(inputs.teacher_candidates[row, at].tolist(), inputs.candidates[row, at].tolist(), strict=True)
    ]
    mass_p, mass_q = sum(p for p, _ in pairs), sum(q for _, q in pairs)
    if inputs.tail == "renormalise":
        return sum(p / mass_p * math.log(p / mass_p / (q / mass_q)) for p, q in pairs)
    inside = sum(p * math.log(p / q) for p, q in pairs)
    return inside + ((1 - mass_p) * math.log((1 - mass_p) / (1 - mass_q)) if inputs.tail == "bucket" else 0.0)


@st.composite
def batches(draw: st.DrawFn) -> DistillationInputs:
    rows, width, topk = draw(st.integers(1, 4)), draw(st.integers(1, 4)), draw(st.integers(1, 3))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**20)))
    mask = torch.rand(rows, width, generator=generator) < draw(st.sampled_from([0.4, 0.8, 1.0]))
    ours = torch.log_softmax(torch.randn(rows, width, 6, generator=generator), dim=-1)
    theirs = torch.log_softmax(2 * torch.randn(rows, width, 6, generator=generator), dim=-1)
    tops = theirs.topk(topk, dim=-1)
    outside = ~mask
    return DistillationInputs(
        log_probs=ours[..., 0].masked_fill(outside, NAN),
        teacher_log_probs=theirs[..., 0].masked_fill(outside, NAN),
        mask=mask,
        candidates=ours.gather(-1, tops.indices).masked_fill(outside[..., None], NAN),
        teacher_candidates=tops.values.masked_fill(outside[..., None], NAN),
        tail=draw(st.sampled_from(TAILS)),
    )


@given(batches())
def test_the_literal_loop_agrees_and_masked_cells_are_never_read(inputs: DistillationInputs) -> None:
    found = DISTILLATION_LOSSES.get("forward_kl_topk")(inputs).per_token
    for row, at in torch.ones_like(inputs.mask).nonzero().tolist():
        expected = literal(inputs, row, at) if inputs.mask[row, at] else 0.0
        assert float(found[row, at]) == pytest.approx(expected, abs=1e-4)


@given(batches(), st.sampled_from(["k1+", "k2", "k3", "abs"]))
def test_weights_multiply_what_is_sampled_and_nothing_else(inputs: DistillationInputs, name: str) -> None:
    weights = torch.linspace(0.5, 2.0, inputs.mask.numel()).reshape(inputs.mask.shape)
    weighted = dataclasses.replace(inputs, weights=weights)
    plain = DISTILLATION_LOSSES.get(name)(inputs).per_token
    torch.testing.assert_close(DISTILLATION_LOSSES.get(name)(weighted).per_token, weights * plain)
    whole = DISTILLATION_LOSSES.get("forward_kl_topk")  # an expectation over tokens already
    assert torch.equal(whole(weighted).per_token, whole(inputs).per_token)


def picked(inputs: DistillationInputs, rows: torch.Tensor) -> DistillationInputs:
    tensors = {name: value[rows] for name, value in vars_of(inputs).items() if isinstance(value, torch.Tensor)}
    return dataclasses.replace(inputs, **tensors)


def vars_of(inputs: DistillationInputs) -> dict[str, object]:
    return {field.name: getattr(inputs, field.name) for field in dataclasses.fields(inputs)}


def filler(value: torch.Tensor) -> torch.Tensor:
    """Two more places, of padding."""
    nothing = False if value.dtype == torch.bool else NAN
    return torch.full((len(value), 2, *value.shape[2:]), nothing, dtype=value.dtype)


def with_leaf(inputs: DistillationInputs, name: str) -> tuple[DistillationInputs, torch.Tensor]:
    field = "candidates" if name == "forward_kl_topk" else "log_probs"
    leaf = getattr(inputs, field).clone().requires_grad_()
    return dataclasses.replace(inputs, **{field: leaf}), leaf


@given(batches(), st.sampled_from(["forward_kl_topk", "k1+", "k2", "k3", "abs"]), st.sampled_from(names.LOSS_AGG_MODES))
def test_splits_padding_and_order_change_nothing(inputs: DistillationInputs, name: str, mode: str) -> None:
    loss, whole = DISTILLATION_LOSSES.get(name), Denominators.of(inputs.mask, scale=3.0)

    def total(part: DistillationInputs) -> torch.Tensor:
        return aggregate(loss(part).per_token, part.mask, mode, whole)

    whole_inputs, leaf = with_leaf(inputs, name)
    expected = total(whole_inputs)
    (slope,) = torch.autograd.grad(expected, leaf)
    assert torch.isfinite(slope).all()
    assert not slope[~inputs.mask].any()
    split = sum(float(total(picked(inputs, torch.tensor([row])))) for row in range(len(inputs.mask)))
    assert split == pytest.approx(float(expected), abs=1e-5)
    turned = total(picked(inputs, torch.arange(len(inputs.mask)).flip(0)))
    assert float(turned) == pytest.approx(float(expected), abs=1e-5)
    wide = {
        field: torch.cat([value, filler(value)], dim=1)
        for field, value in vars_of(inputs).items()
        if isinstance(value, torch.Tensor)
    }
    assert float(total(dataclasses.replace(inputs, **wide))) == pytest.approx(float(expected), abs=1e-5)
