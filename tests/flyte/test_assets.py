"""Where assets may lie, and what their caches go by."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tasks import config as first_node
from tasks.assets import data_key, policy_key
from tasks.config import resolve_config
from verl_core.config import RunConfig, resolve
from verl_core.errors import ConfigError
from verl_core.trainer.assets import data_folder, policy_folder

PREPARED = {
    "data": {"prepare": {"task": "one_digit_sums", "train_size": 64, "val_size": 8}},
    "warm_start": {"enable": True},
}


def configured(*overrides: str) -> RunConfig:
    return resolve(PREPARED, overrides).config


def test_assets_lie_below_the_local_folder(tmp_path: Path) -> None:
    config = configured(f"trainer.default_local_dir={tmp_path}")
    assert Path(data_folder(config)).parent == Path(policy_folder(config)).parent == tmp_path / "assets"


def test_both_refusals_are_documented_word_for_word(repo_root: Path) -> None:
    documented = (repo_root / "docs" / "errors.md").read_text()
    with pytest.raises(ConfigError) as url:
        data_folder(configured("trainer.default_local_dir=s3://bucket/runs"))
    with pytest.raises(ConfigError) as relative:
        first_node.require_shared("runs")
    assert f"```text\n{url.value}\n```" in documented
    assert f"```text\n{relative.value}\n```" in documented


@pytest.mark.parametrize(
    ("place", "wanted"),
    [
        (data_folder, r"s3://bucket/runs is a URL, and data\.prepare writes .*data\.train_files"),
        (policy_folder, r"s3://bucket/runs is a URL, and warm_start writes .*model\.path.*warm_start\.enable=false"),
    ],
)
def test_a_url_is_refused_and_not_made_a_local_path(place, wanted: str) -> None:
    with pytest.raises(ConfigError, match=wanted):
        place(configured("trainer.default_local_dir=s3://bucket/runs"))


def test_the_first_node_tells(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is a URL"):
        resolve_config(config=PREPARED, overrides=["trainer.default_local_dir=s3://bucket/runs"])


def test_a_pod_refuses_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve_config(config=PREPARED, overrides=[]).config["trainer"]["default_local_dir"] == "runs"
    monkeypatch.setattr(first_node, "is_local", lambda: False)
    with pytest.raises(ConfigError, match=r"default_local_dir=runs is relative.*every node reaches"):
        resolve_config(config=PREPARED, overrides=[])
    resolve_config(config=PREPARED, overrides=[f"trainer.default_local_dir={tmp_path}"])


def row(question: str, answer: str) -> str:
    truth = {"style": "rule", "ground_truth": answer}
    prompt = [{"role": "user", "content": question}]
    return json.dumps({"data_source": "one_digit_sums", "prompt": prompt, "reward_model": truth}) + "\n"


def test_the_policy_is_made_anew_when_its_rows_change(tmp_path: Path) -> None:
    rows = tmp_path / "train.jsonl"
    config = resolve(
        {"data": {"train_files": [str(rows)]}, "warm_start": {"enable": True}},
        [f"trainer.default_local_dir={tmp_path}", "trainer.val_before_train=false"],
    ).config
    Path(policy_folder(config)).mkdir(parents=True)  # made before, so the key has to be stable
    rows.write_text(row("1+1=", "2"))
    before = policy_key(config)
    assert policy_key(config) == before
    rows.write_text(row("1+2=", "3"))  # the same path
    assert policy_key(config) != before


def test_rows_are_built_anew_when_their_source_changes(tmp_path: Path) -> None:
    source = tmp_path / "questions.jsonl"
    source.write_text('{"question": "1+1?", "answer": "2"}\n')
    prepare = {"file": str(source), "data_source": "one_digit_sums", "train_size": 32, "val_size": 0}
    config = resolve(
        {"data": {"prepare": prepare}, "warm_start": {"enable": True}},
        [f"trainer.default_local_dir={tmp_path}", "trainer.val_before_train=false"],
    ).config
    Path(data_folder(config)).mkdir(parents=True)
    before = data_key(config)
    assert data_key(config) == before
    source.write_text('{"question": "1+2?", "answer": "3"}\n')
    assert data_key(config) != before


def test_a_deleted_asset_is_not_found_in_the_cache(tmp_path: Path) -> None:
    config = configured(f"trainer.default_local_dir={tmp_path}")
    assert policy_key(config) != policy_key(config)
    assert data_key(config) != data_key(config)
