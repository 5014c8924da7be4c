"""Seeds of requests. Invariant: a request's seed depends on what is asked for, never on when, where or beside what it
runs."""

from __future__ import annotations

import hashlib


def request_seed(seed: int, uid: str, session: int, tokens_done: int = 0) -> int:
    """63-bit seed of one request, in the range that every engine takes (vLLM wants a signed 64-bit integer, -1
    excepted).

    Args:
        seed: rollout.seed.
        uid: of the group; a re-issued group has another one, so it draws other samples.
        session: of the group; siblings must differ or they are duplicates.
        tokens_done: tokens the session already has. A resumed request that kept its seed would replay the noise of its
            first tokens.
    """
    digest = hashlib.sha256(f"{seed}|{uid}|{session}|{tokens_done}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def attempt_seed(seed: int, tokens_done: int) -> int:
    """Seed of a request that goes on after `tokens_done` tokens: the request's own for the first attempt, else another
    63-bit one, so that the noise of the tokens it has is not drawn again."""
    if tokens_done == 0:
        return seed
    digest = hashlib.sha256(f"{seed}|resumed|{tokens_done}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
