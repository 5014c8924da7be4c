"""Ids are made again only for a reward model of another vocabulary."""

from __future__ import annotations

from pathlib import Path

import pytest

from verl_core.config import RunConfig
from verl_core.data.reward_tokenizer import answered_chat, own_tokenizer
from verl_core.errors import DataError, ModelError
from verl_core.trainer.scoring import check_reward_model
from verl_core.warm_start.tokenizer import make_tokenizer

CHAT = [{"role": "user", "content": "3+4="}]


def folder(path: Path, *added: str) -> str:
    inner = make_tokenizer()
    inner.add_tokens(list(added))
    inner.save_pretrained(path)
    return str(path)


def test_the_same_vocabulary_needs_no_text(tmp_path: Path) -> None:
    policy = folder(tmp_path / "policy")
    assert own_tokenizer(policy, folder(tmp_path / "same")) is None


def test_another_vocabulary_reads_the_answered_chat_by_its_own_template(tmp_path: Path) -> None:
    policy = folder(tmp_path / "policy")
    other = own_tokenizer(policy, folder(tmp_path / "other", "<judge>"))
    assert other is not None
    other.inner.chat_template = "{% for m in messages %}<judge>{{ m['content'] }}{% endfor %}"
    mark = other.inner.convert_tokens_to_ids("<judge>")
    ids = answered_chat(other, CHAT, "7", "a_0_0").tolist()
    assert ids == [mark, *other.encode("3+4="), mark, *other.encode("7")]
    other.inner.chat_template = "{{ raise_exception('no user here') }}"
    with pytest.raises(DataError, match=r"a_0_0: the chat template of .*other refuses the answer: no user here"):
        answered_chat(other, CHAT, "7", "a_0_0")


def test_a_reward_model_has_a_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "bare").mkdir()
    with pytest.raises(ModelError, match=r"no usable tokenizer in .*bare"):
        own_tokenizer(folder(tmp_path / "policy"), str(tmp_path / "bare"))


def test_a_folder_that_cannot_score_is_told_by_its_key(tmp_path: Path) -> None:
    config = RunConfig()
    config.actor_rollout_ref.model.path = folder(tmp_path / "policy")
    model = config.reward.reward_model
    model.model_path = str(tmp_path / "none")
    check_reward_model(config)  # nobody asks it
    model.enable = True
    with pytest.raises(ModelError, match=r"reward\.reward_model\.model_path='.*none' is not a model folder"):
        check_reward_model(config)
    model.model_path = folder(tmp_path / "judge")
    (tmp_path / "judge" / "config.json").write_text("{}")
    check_reward_model(config)
