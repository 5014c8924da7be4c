"""Checks of `data.*` and `warm_start.*`: where prompts and the policy come from."""

from __future__ import annotations

from collections.abc import Iterator

from verl_core.config.checks import Facts, check, no_effect


@check
def training_rows_have_one_source(facts: Facts) -> Iterator[str]:
    """Files are read, or rows are prepared; not both, not neither."""
    data = facts.config.data
    prepared = [key for key in ("data.prepare.task", "data.prepare.file") if facts.values[key]]
    if data.train_files and prepared:
        yield f"{prepared[0]}: data.train_files is given too; rows are read or prepared, so delete one of them"
    elif len(prepared) == 2:
        yield "data.prepare.file: data.prepare.task is given too; delete one of them"
    elif not data.train_files and not prepared:
        yield (
            "data.train_files: no training rows; name parquet or JSONL files here, or let data.prepare.task or"
            " data.prepare.file build them"
        )


@check
def prepare_settings_are_read(facts: Facts) -> Iterator[str]:
    """Details of a preparation that does not happen, or that the chosen kind does not know."""
    data = facts.config.data
    if not data.prepare.enabled:
        yield from no_effect(facts, facts.given_below("data.prepare"), "without data.prepare.task or data.prepare.file")


@check
def a_prepared_file_has_a_verifier(facts: Facts) -> Iterator[str]:
    """A task brings its verifier, a file does not."""
    prepare = facts.config.data.prepare
    if prepare.file and not prepare.data_source:
        yield "data.prepare.data_source: data.prepare.file needs the name that picks the verifier, such as gsm8k"


@check
def prepared_rows_fill_a_batch(facts: Facts) -> Iterator[str]:
    """The training set holds at least one batch."""
    data = facts.config.data
    if data.prepare.enabled and data.prepare.train_size < data.train_batch_size:
        yield (
            f"data.prepare.train_size: {data.prepare.train_size} rows do not fill one data.train_batch_size="
            f"{data.train_batch_size}"
        )
    if 0 < data.train_max_samples < data.train_batch_size:
        yield (
            f"data.train_max_samples: {data.train_max_samples} rows do not fill one data.train_batch_size="
            f"{data.train_batch_size}"
        )


@check
def validation_has_rows(facts: Facts) -> Iterator[str]:
    """Validation that is asked for has something to validate on, and its settings are read only then."""
    data, trainer = facts.config.data, facts.config.trainer
    if data.val_files and not data.train_files:
        yield "data.val_files: given without data.train_files; with data.prepare set data.prepare.val_size instead"
    rows = bool(data.val_files) or (data.prepare.val_size > 0 and not data.train_files)
    for key in ("trainer.val_before_train", "trainer.test_freq"):
        wanted = trainer.val_before_train if key == "trainer.val_before_train" else trainer.test_freq > 0
        off = "false" if key == "trainer.val_before_train" else "-1"
        if wanted and not rows:
            yield f"{key}: no validation rows; give data.val_files or data.prepare.val_size, or set it to {off}"
    if not trainer.val_before_train and trainer.test_freq < 1:
        keys = ["data.val_batch_size", "data.val_max_samples", "data.val_files", "data.prepare.val_size"]
        keys += facts.given_below("actor_rollout_ref.rollout.val_kwargs")
        yield from no_effect(facts, keys, "without trainer.val_before_train or trainer.test_freq")


@check
def the_policy_has_one_source(facts: Facts) -> Iterator[str]:
    """A model folder is named, or a tiny model is made; not both, not neither."""
    path, warm = facts.config.actor_rollout_ref.model.path, facts.config.warm_start.enable
    if path and warm:
        yield "warm_start.enable: actor_rollout_ref.model.path is given too; delete one of them"
    if not path and not warm:
        yield "actor_rollout_ref.model.path: no model; name its folder or set warm_start.enable=true"


@check
def warm_start_settings_are_read(facts: Facts) -> Iterator[str]:
    """Settings of a model that is not made."""
    if not facts.config.warm_start.enable:
        yield from no_effect(facts, facts.given_below("warm_start"), "without warm_start.enable=true")


@check
def warm_start_heads_fit(facts: Facts) -> Iterator[str]:
    """Heads of 32 are the smallest that the inference engine serves."""
    width = facts.config.warm_start.hidden_size
    if width % 32:
        yield f"warm_start.hidden_size: must be a multiple of 32 (the width of an attention head), got {width}"
