"""Whether a teacher reads the policy's token ids as the policy means them. Invariant: found out before Ray starts."""

from __future__ import annotations

import json
from pathlib import Path

from verl_core.data.tokenizer import vocabulary_of
from verl_core.errors import ModelError

_SHOWN = 3


def check_teacher(name: str, folder: str, policy: str, topk: int, longest: int) -> None:
    """Compare a teacher's folder with the policy's.

    Args:
        name: in `distillation.teacher_models`.
        topk: candidates that it will be asked for.
        longest: tokens of the longest sequence.

    Raises:
        ModelError: no such folder, no language model in it, another tokenizer, or too few tokens or places.
    """
    who = f"the teacher distillation.teacher_models.{name} ({folder})"
    settings = model_settings(folder, who)
    said = settings.get("architectures")
    kinds = [str(kind) for kind in said] if isinstance(said, list) else []
    if kinds and not any("CausalLM" in kind or "ConditionalGeneration" in kind or "LMHead" in kind for kind in kinds):
        raise ModelError(f"{who} is a {kinds[0]}, which gives no log-probs of tokens; name a causal language model")
    _same_tokens(who, folder, policy)
    size, places = vocabulary_size(settings), _text(settings).get("max_position_embeddings")
    if size is not None and topk > size:
        raise ModelError(
            f"{who} knows {size} tokens; distillation.distillation_loss.topk={topk} asks for more. Lower it"
        )
    if isinstance(places, int) and places < longest + 1:
        raise ModelError(
            f"{who} reads {places} tokens at most, and data.max_prompt_length + data.max_response_length + 1 = "
            f"{longest + 1}. Shorten them, or take another teacher"
        )


def model_settings(folder: str, who: str) -> dict[str, object]:
    """config.json of a model folder. Raises ModelError: it is not there, or cannot be read."""
    try:
        found: dict[str, object] = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError) as error:
        raise ModelError(f"{who} is not a model folder: {error}") from error
    return found


def vocabulary_size(settings: dict[str, object]) -> int | None:
    """Tokens that the model knows, padding of the table included; None when it does not say."""
    size = _text(settings).get("vocab_size")
    return size if isinstance(size, int) else None


def _text(settings: dict[str, object]) -> dict[str, object]:
    inner = settings.get("text_config")
    return inner if isinstance(inner, dict) else settings


def _same_tokens(who: str, folder: str, policy: str) -> None:
    theirs, ours = vocabulary_of(folder), vocabulary_of(policy)
    if theirs == ours:
        return
    differ = sorted(token for token in {*theirs, *ours} if theirs.get(token) != ours.get(token))
    shown = ", ".join(f"{token!r} is {ours.get(token)} here and {theirs.get(token)} there" for token in differ[:_SHOWN])
    raise ModelError(
        f"{who} has another tokenizer than the policy ({policy}): {len(differ)} tokens differ: {shown}. A teacher "
        "scores the very ids that were sampled; take one of the same family"
    )
