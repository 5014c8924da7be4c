"""The policy losses once more, one row and one token at a time, written from the papers' formulas. Values carry
gradients: each entry is a 0-d tensor of the autograd graph."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from verl_core.algorithms.policy_losses import PolicyLossInputs

Scalar = torch.Tensor
Token = tuple[Scalar, float, float]  # log pi (with gradient), log pi_old, advantage


def tokens(given: PolicyLossInputs, row: int) -> list[tuple[int, Token]]:
    return [
        (t, (given.log_probs[row, t], float(given.old_log_probs[row, t]), float(given.advantages[row, t])))
        for t in range(given.mask.shape[1])
        if given.mask[row, t]
    ]


def per_token(given: PolicyLossInputs, formula: Callable[[Token], Scalar]) -> dict[tuple[int, int], Scalar]:
    return {(row, t): formula(token) for row in range(len(given.mask)) for t, token in tokens(given, row)}


def clipped_surrogate(given: PolicyLossInputs, ratio: Scalar, advantage: float) -> Scalar:
    inside = torch.clamp(ratio, 1 - given.clip_low, 1 + given.clip_high)
    return torch.maximum(-advantage * ratio, -advantage * inside)


def vanilla(given: PolicyLossInputs) -> dict[tuple[int, int], Scalar]:
    def formula(token: Token) -> Scalar:
        log_p, old, advantage = token
        loss = clipped_surrogate(given, torch.exp(log_p - old), advantage)
        return torch.minimum(loss, torch.tensor(-advantage * given.clip_c)) if advantage < 0 else loss

    return per_token(given, formula)


def gspo(given: PolicyLossInputs) -> dict[tuple[int, int], Scalar]:
    """The paper's row loss, spread so that the mean over the row's tokens gives it back."""
    out = {}
    for row in range(len(given.mask)):
        line = tokens(given, row)
        if not line:
            continue
        s = torch.exp(sum((log_p - old for _, (log_p, old, _) in line), torch.tensor(0.0)) / len(line))
        for t, (_, _, advantage) in line:
            out[row, t] = clipped_surrogate(given, s, advantage)
    return out


def sapo(given: PolicyLossInputs) -> dict[tuple[int, int], Scalar]:
    def formula(token: Token) -> Scalar:
        log_p, old, advantage = token
        tau = given.tau_pos if advantage > 0 else given.tau_neg
        return -advantage * 4 / tau / (1 + torch.exp(-tau * (torch.exp(log_p - old) - 1)))

    return per_token(given, formula)


def gpg(given: PolicyLossInputs) -> dict[tuple[int, int], Scalar]:
    return per_token(given, lambda token: -token[2] * token[0])


def cispo(given: PolicyLossInputs) -> dict[tuple[int, int], Scalar]:
    def formula(token: Token) -> Scalar:
        log_p, old, advantage = token
        weight = min(max(math.exp(float(log_p.detach()) - old), 1 - given.clip_low), 1 + given.clip_high)
        return -weight * advantage * log_p

    return per_token(given, formula)


def dro(given: PolicyLossInputs) -> dict[tuple[int, int], Scalar]:
    beta = given.dro_beta or 0.0
    return per_token(given, lambda token: -(token[0] * token[2] - beta / 2 * (token[0] - token[1]) ** 2))


def geo_mean(given: PolicyLossInputs) -> dict[tuple[int, int], Scalar]:
    out = {}
    for row in range(len(given.mask)):
        line = tokens(given, row)
        total = torch.tensor(0.0)
        for _, (log_p, old, advantage) in line:
            sign = (advantage > 0) - (advantage < 0)
            ratio = log_p - old
            total = total + sign * torch.minimum(sign * ratio, sign * ratio.clamp(-given.clip_low, given.clip_high))
        for t, _ in line:
            mean = sum(advantage for _, (_, _, advantage) in line) / len(line)
            out[row, t] = -mean * torch.exp(total / len(line))
    return out


def dppo(given: PolicyLossInputs, kl: bool) -> dict[tuple[int, int], Scalar]:
    def formula(token: Token) -> Scalar:
        log_p, old, advantage = token
        p, q = math.exp(float(log_p.detach())), math.exp(old)
        distance = q * math.log(q / p) + (1 - q) * math.log((1 - q) / (1 - p)) if kl else abs(p - q)
        bound = given.clip_high if advantage > 0 else given.clip_low
        away = p > q if advantage > 0 else p < q
        if away and distance > bound:
            return log_p * 0
        return -advantage * min(p / q, given.clip_c) * log_p

    return per_token(given, formula)


def clip_cov(given: PolicyLossInputs) -> dict[tuple[int, int], Scalar]:
    free = per_token(given, lambda token: clipped_surrogate(given, torch.exp(token[0] - token[1]), token[2]))
    return {cell: loss * 0 if given.marks()[cell] else loss for cell, loss in free.items()}


def kl_cov(given: PolicyLossInputs) -> dict[tuple[int, int], Scalar]:
    plain = per_token(given, lambda token: -token[2] * torch.exp(token[0] - token[1]))
    held = per_token(given, lambda token: given.kl_coef * torch.abs(token[0] - token[1]))
    return {cell: loss + held[cell] if given.marks()[cell] else loss for cell, loss in plain.items()}


LITERAL: dict[str, Callable[[PolicyLossInputs], dict[tuple[int, int], Scalar]]] = {
    "cispo": cispo,
    "clip_cov": clip_cov,
    "dppo_kl": lambda given: dppo(given, kl=True),
    "dppo_tv": lambda given: dppo(given, kl=False),
    "dro": dro,
    "geo_mean": geo_mean,
    "gpg": gpg,
    "gspo": gspo,
    "kl_cov": kl_cov,
    "sapo": sapo,
    "vanilla": vanilla,
}
