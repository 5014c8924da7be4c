"""Checks of `sft.*`: fine-tuning reads a part of the settings, and nothing else may be set beside it."""

from __future__ import annotations

from collections.abc import Iterator

from verl_core.config.checks import Facts, check, no_effect

_ACTOR = "actor_rollout_ref.actor"
_COLUMNS = ("data.prompt_key", "data.reward_fn_key")

# Settings and sections that fine-tuning reads.
READ = (
    "sft",
    "warm_start",
    "ray.head",
    "ray.worker",
    "ray.max_hours",
    "actor_rollout_ref.model",
    *(f"{_ACTOR}.{name}" for name in ("optim", "grad_clip", "loss_agg_mode", "loss_scale_factor", "call_timeout_s")),
    f"{_ACTOR}.ppo_max_token_len_per_gpu",
    "actor_rollout_ref.ref.log_prob_max_token_len_per_gpu",
    "data.prepare",
    *_COLUMNS,
    *(f"data.{name}" for name in ("train_files", "val_files", "train_batch_size", "truncation", "shuffle", "seed")),
    *(f"data.{name}" for name in ("train_max_samples", "val_max_samples")),
    *(f"trainer.{name}" for name in ("project_name", "experiment_name", "default_local_dir", "logger", "seed")),
    *(f"trainer.{name}" for name in ("device", "nnodes", "n_gpus_per_node", "init_timeout_s")),
    *(f"trainer.{name}" for name in ("total_epochs", "total_training_steps", "save_freq", "test_freq")),
    *(f"trainer.{name}" for name in ("val_before_train", "max_actor_ckpt_to_keep")),
)


@check
def only_what_fine_tuning_reads_is_set(facts: Facts) -> Iterator[str]:
    """Fine-tuning samples nothing and rewards nothing."""
    if not facts.config.sft.enable:
        yield from no_effect(facts, facts.given_below("sft"), "without sft.enable=true")
        return
    keys = [key for key in facts.values if not any(key == entry or key.startswith(f"{entry}.") for entry in READ)]
    unread = [*keys, "actor_rollout_ref.model.lora.merge"]  # nothing is published
    yield from no_effect(facts, unread, "with sft.enable=true, which learns given answers")


@check
def rows_have_the_column_of_messages(facts: Facts) -> Iterator[str]:
    """Messages are a column, or prompt and answer are."""
    config = facts.config
    if not config.sft.enable or not config.sft.messages_key:
        return
    if config.data.prepare.enabled:
        yield (
            "sft.messages_key: rows of data.prepare have a prompt and an answer, and no column "
            f"{config.sft.messages_key!r}; set it to null"
        )
    because = f"with sft.messages_key={config.sft.messages_key}; for rows of prompt and answer set that to null"
    yield from no_effect(facts, list(_COLUMNS), because)


@check
def long_rows_are_not_cut(facts: Facts) -> Iterator[str]:
    """A row without its beginning is another question."""
    if facts.config.sft.enable and facts.config.data.truncation == "left":
        yield "data.truncation: left would teach answers to half a question with sft.enable=true; use error or drop"
