"""verl's settings that do not exist here. Invariant: a key of verl's is never just "unknown"; it gets an answer.

An entry answers for its key and everything below it; one that ends in `*` for every key that starts like it. The first
that fits speaks.
"""

from __future__ import annotations

_LATER = "known in verl, not supported yet"
_ROLLOUT = "actor_rollout_ref.rollout"
_ACTOR = "actor_rollout_ref.actor"
_MODEL = "actor_rollout_ref.model"
_DISTANCE = "distillation.distillation_loss"

ANSWERS: tuple[tuple[str, str], ...] = (
    # trainer
    ("trainer.balance_batch", "known in verl, not needed: micro-batches are cut by token budget; delete it"),
    ("trainer.val_only", f"{_LATER}; use the `evaluate` workflow"),
    ("trainer.default_hdfs_dir", "known in verl; use trainer.default_local_dir, which takes any fsspec URL"),
    ("trainer.max_critic_ckpt_to_keep", "known in verl; one checkpoint holds both: use trainer.max_actor_ckpt_to_keep"),
    ("trainer.del_local_ckpt_after_load", f"{_LATER}; old checkpoints go by trainer.max_actor_ckpt_to_keep"),
    ("trainer.checkpoint_callback_class", f"{_LATER}; delete it"),
    ("trainer.log_val_generations", "known in verl; the report shows samples of every validation; delete it"),
    ("trainer.rollout_data_dir", "known in verl; steps/<step>/trajectories.parquet of the run holds them; delete it"),
    ("trainer.validation_data_dir", "known in verl; the run directory holds them; delete it"),
    ("trainer.v1.sampler.sync_refill_failed_groups", f"{_LATER}; a failed group is asked again, see trainer.v1.buffer"),
    ("trainer.v1.sampler.custom_sampler", f"{_LATER}; delete it"),
    ("trainer.v1.sampler.sampler_kwargs", f"{_LATER}; delete it"),
    # algorithm
    (
        "algorithm.filter_groups.max_inflight_gen_batches",
        "known in verl; every dropped group is replaced at once by one prompt; delete it",
    ),
    *(
        (f"algorithm.{name}", f"in verl's older spelling; use algorithm.rollout_correction.{name}")
        for name in ("rollout_is", "rollout_is_threshold", "rollout_rs", "rollout_rs_threshold")
    ),
    (
        "algorithm.rollout_correction.rollout_token_veto_threshold",
        "in verl's older spelling; rollout_rs: seq_max_k2 or seq_max_k3 rejects a row by its worst token",
    ),
    ("algorithm.use_pf_ppo", f"{_LATER}; delete it"),
    ("algorithm.pf_ppo", f"{_LATER}; delete it"),
    # data
    (
        "data.gen_batch_size",
        "known in verl; data.train_batch_size prompts go out per step, and one more for each group that is dropped",
    ),
    ("data.sampler.class_name", "known in verl; data.sampler.class_path is package.module.Class"),
    ("data.curriculum", "known in verl; use data.sampler"),
    ("data.validation_shuffle", "known in verl; validation is served in file order; delete it"),
    ("data.dataloader_num_workers", "known in verl, not needed: rows are tokenized once at the start; delete it"),
    ("data.filter_overlong_prompts*", "known in verl; use data.truncation=drop"),
    ("data.custom_cls", f"{_LATER}; write your rows as parquet or JSONL, or build them with data.prepare"),
    ("data.tool_config_path", f"known in verl; use {_ROLLOUT}.multi_turn.tool_config_path"),
    ("data.tokenizer", "known in verl; the tokenizer is the model folder's own (actor_rollout_ref.model.path)"),
    ("data.return_raw_*", "known in verl, not needed: the chat always travels with the prompt; delete it"),
    ("data.image_key", f"{_LATER}: text only"),
    ("data.video_key", f"{_LATER}: text only"),
    # actor
    (
        f"{_ACTOR}.policy_loss.rollout_correction",
        "known in verl; algorithm.rollout_correction is the one place, and every process reads it",
    ),
    (
        f"{_ACTOR}.tis_imp_ratio_cap",
        "in verl's older spelling; use algorithm.rollout_correction.rollout_is with its rollout_is_threshold",
    ),
    (f"{_ACTOR}.ppo_mini_batch_size_per_gpu", f"known in verl; use {_ACTOR}.ppo_mini_batch_size"),
    (f"{_ACTOR}.ppo_micro_batch_size*", f"known in verl; use {_ACTOR}.ppo_max_token_len_per_gpu (a token budget)"),
    (f"{_ACTOR}.use_dynamic_bsz", "known in verl, always on here: micro-batches are cut by token budget; delete it"),
    (f"{_ACTOR}.data_loader_seed", "known in verl; mini-batch order is seeded by trainer.seed"),
    (f"{_ACTOR}.checkpoint", "known in verl; everything that changes is saved; see trainer.save_freq"),
    (f"{_ACTOR}.strategy", "known in verl, always fsdp2 here; delete it"),
    (f"{_ACTOR}.fsdp_config", f"{_LATER}; delete it"),
    (f"{_ACTOR}.ulysses_sequence_parallel_size", f"{_LATER}; delete it"),
    (f"{_ACTOR}.use_torch_compile", f"{_LATER}; delete it"),
    (f"{_ACTOR}.optim.warmup_style", f"in verl's older spelling; use {_ACTOR}.optim.lr_scheduler_type"),
    (f"{_ACTOR}.optim.total_training_steps", "known in verl; the horizon is the total number of optimizer steps"),
    (f"{_ACTOR}.optim.num_cycles", f"{_LATER}: the cosine goes down once"),
    # reference
    ("actor_rollout_ref.ref.log_prob_micro_batch_size*", "known in verl; use ref.log_prob_max_token_len_per_gpu"),
    ("actor_rollout_ref.ref.log_prob_use_dynamic_bsz", "known in verl, always on here; delete it"),
    ("actor_rollout_ref.ref.fsdp_config", f"{_LATER}; delete it"),
    ("actor_rollout_ref.ref.model", f"{_LATER}: the reference is the model the run started from"),
    ("actor_rollout_ref.ref.strategy", "known in verl, always fsdp2 here; delete it"),
    ("actor_rollout_ref.hybrid_engine", f"{_LATER}: trainer and servers share their devices; delete it"),
    # rollout
    (f"{_ROLLOUT}.enforce_eager", f"{_LATER}; delete it"),
    (f"{_ROLLOUT}.ignore_eos", f"{_LATER}: a response ends at the end token; delete it"),
    (f"{_ROLLOUT}.mode", "known in verl, always asynchronous here; delete it"),
    (f"{_ROLLOUT}.calculate_log_probs", "known in verl, always on here; delete it"),
    (f"{_ROLLOUT}.free_cache_engine", "known in verl, always on in the sync mode; delete it"),
    (f"{_ROLLOUT}.full_determinism", f"{_LATER}; with {_ROLLOUT}.seed and float32 requests repeat exactly on a CPU"),
    (f"{_ROLLOUT}.max_num_batched_tokens", f"{_LATER}; use {_ROLLOUT}.max_num_seqs"),
    (f"{_ROLLOUT}.enable_chunked_prefill", f"{_LATER}: the engine's own default holds; delete it"),
    (f"{_ROLLOUT}.load_format", "known in verl; servers start from the model folder, then receive weights; delete it"),
    (f"{_ROLLOUT}.router_config_path", f"{_LATER}: requests go to the least loaded server"),
    (
        f"{_ROLLOUT}.agent.agent_loop_config_path",
        f"known in verl; give {_ROLLOUT}.agent.default_agent_loop=package.Class",
    ),
    (f"{_ROLLOUT}.agent.agent_loop_manager_class", f"{_LATER}; delete it"),
    (
        f"{_ROLLOUT}.multi_turn.max_user_turns",
        f"known in verl; tools answer every turn that calls them: {_ROLLOUT}.multi_turn.max_assistant_turns is enough",
    ),
    (f"{_ROLLOUT}.multi_turn.interaction_config_path", f"{_LATER}: only tools answer; delete it"),
    (f"{_ROLLOUT}.multi_turn.use_inference_chat_template", "known in verl, always on here; delete it"),
    (f"{_ROLLOUT}.multi_turn.tokenization_sanity_check_mode", "known in verl, not needed: ids are never made again"),
    (f"{_ROLLOUT}.checkpoint_engine.backend", f"known in verl; use {_ROLLOUT}.update_weights_backend"),
    (
        f"{_ROLLOUT}.checkpoint_engine.update_weights_bucket_megabytes",
        f"known in verl; use {_ROLLOUT}.update_weights_bucket_megabytes",
    ),
    (f"{_ROLLOUT}.checkpoint_engine", f"{_LATER}; see {_ROLLOUT}.update_weights_backend"),
    (f"{_ROLLOUT}.disaggregation", f"{_LATER}; delete it"),
    (f"{_ROLLOUT}.enable_rollout_routing_replay", f"{_LATER}; delete it"),
    (f"{_ROLLOUT}.moe_load_balance_metrics_interval", f"{_LATER}; delete it"),
    (f"{_ROLLOUT}.log_prob_*", "known in verl; use actor_rollout_ref.ref.log_prob_max_token_len_per_gpu"),
    (
        f"{_ROLLOUT}.do_sample",
        f"known in verl; training always samples; greedy validation is {_ROLLOUT}.val_kwargs.temperature=0",
    ),
    (f"{_ROLLOUT}.val_kwargs.do_sample", f"known in verl; greedy is {_ROLLOUT}.val_kwargs.temperature=0"),
    (f"{_ROLLOUT}.response_length", "known in verl; use data.max_response_length"),
    (f"{_ROLLOUT}.prompt_length", "known in verl; use data.max_prompt_length"),
    (f"{_ROLLOUT}.engine_kwargs", f"{_LATER}; delete it"),
    # model
    (f"{_MODEL}.lora.rank", f"known in verl; use {_MODEL}.lora_rank"),
    (f"{_MODEL}.lora.alpha", f"known in verl; use {_MODEL}.lora_alpha"),
    (f"{_MODEL}.lora.dropout", "known in verl; adapters have no dropout here: log-probs would not be the rollout's"),
    (f"{_MODEL}.lora.target_modules", f"known in verl; use {_MODEL}.target_modules"),
    (f"{_MODEL}.lora.exclude_modules", f"known in verl; use {_MODEL}.exclude_modules"),
    (f"{_MODEL}.lora.adapter_path", f"known in verl; use {_MODEL}.lora_adapter_path"),
    (f"{_MODEL}.lora_dropout", "an adapter has no dropout here: log-probs would differ from the rollout's; delete it"),
    (f"{_MODEL}.use_remove_padding", "known in verl, always on here; delete it"),
    (f"{_MODEL}.gradient_checkpointing", f"known in verl; use {_MODEL}.enable_gradient_checkpointing"),
    (f"{_MODEL}.trust_remote_code", f"{_LATER}: code from model folders is never run"),
    (f"{_MODEL}.use_shm", f"{_LATER}; delete it"),
    (f"{_MODEL}.external_lib", f"{_LATER}; delete it"),
    # whole sections
    ("critic.optim.warmup_style", "in verl's older spelling; use critic.optim.lr_scheduler_type"),
    ("critic.optim.total_training_steps", "known in verl; the horizon is the total number of optimizer steps"),
    ("critic.optim.num_cycles", f"{_LATER}: the cosine goes down once"),
    ("critic.optim.optimizer*", f"{_LATER}: AdamW; delete it"),
    ("critic.optim.override_optimizer_config", f"{_LATER}: AdamW; delete it"),
    ("critic.ppo_micro_batch_size*", "known in verl; use critic.ppo_max_token_len_per_gpu (a token budget)"),
    ("critic.forward_micro_batch_size*", "known in verl; use critic.forward_max_token_len_per_gpu (a token budget)"),
    ("critic.ppo_mini_batch_size_per_gpu", "known in verl; use critic.ppo_mini_batch_size"),
    ("critic.use_dynamic_bsz", "known in verl, always on here: micro-batches are cut by token budget; delete it"),
    ("critic.ppo_infer_*", "known in verl; use critic.forward_max_token_len_per_gpu (a token budget)"),
    ("critic.rollout_n", "known in verl, not needed: mini-batches count prompts; delete it"),
    ("critic.strategy", "known in verl, always fsdp2 here; delete it"),
    ("critic.checkpoint", "known in verl; everything that changes is saved; see trainer.save_freq"),
    ("critic.data_loader_seed", "known in verl; mini-batch order is seeded by trainer.seed"),
    ("critic.model.tokenizer_path", "known in verl, not needed: the critic reads the policy's token ids; delete it"),
    ("critic.model.use_remove_padding", "known in verl, always on here; delete it"),
    ("critic.model.trust_remote_code", f"{_LATER}: code from model folders is never run"),
    ("critic.model.lora_*", f"{_LATER}: full parameters are trained"),
    ("critic.model.gradient_checkpointing", "known in verl; use critic.model.enable_gradient_checkpointing"),
    ("critic.model.enable_activation_offload", f"{_LATER}; delete it"),
    ("critic.model.external_lib", f"{_LATER}; delete it"),
    ("critic.model.fsdp_config", f"{_LATER}; delete it"),
    ("critic.model.override_config", f"{_LATER}; delete it"),
    ("critic.model.target_modules", f"{_LATER}: full parameters are trained"),
    ("critic.model.use_shm", f"{_LATER}; delete it"),
    ("critic.engine", f"{_LATER}; delete it"),
    ("critic.fsdp*", f"{_LATER}; delete it"),
    ("critic.megatron", f"{_LATER}; delete it"),
    ("critic.nccl_timeout", "known in verl; actor_rollout_ref.actor.call_timeout_s counts for both"),
    ("critic.profiler", f"{_LATER}; delete it"),
    ("critic.ulysses_sequence_parallel_size", f"{_LATER}; delete it"),
    ("critic.use_torch_compile", f"{_LATER}; delete it"),
    (
        "reward.reward_manager",
        "known in verl; the verifier is chosen by data_source, or give reward.custom_reward_function",
    ),
    (
        "reward.reward_model.rollout",
        "known in verl; transformers scores here, in batches of reward.reward_model.max_token_len_per_gpu tokens",
    ),
    ("reward.reward_model.tokenizer*", "known in verl; the tokenizer is that of the reward model's folder; delete it"),
    ("reward.sandbox_fusion", "known in verl; code is run here: data sources code and code_fraction, reward.sandbox"),
    (
        "reward.custom_reward_function.reward_kwargs",
        f"{_LATER}; give them their values in the file of the function",
    ),
    ("reward.reward_kwargs.overlong_buffer_cfg", "known in verl; use reward.overlong_buffer"),
    ("reward_model.overlong_buffer", "in verl's older place; use reward.overlong_buffer"),
    ("reward_model", "in verl's older place; see reward.*"),
    ("custom_reward_function", "in verl's older place; use reward.custom_reward_function.path and .name"),
    ("distillation.teacher_key", "known in verl, always data_source here; delete it"),
    ("distillation.teacher_model", "in verl's older place; use distillation.teacher_models, by names of your own"),
    ("distillation.nnodes", "known in verl; every server of a teacher has a device of its own, see num_replicas"),
    ("distillation.n_gpus_per_node", "known in verl; every server of a teacher has a device of its own"),
    (
        "distillation.enable_resource_pool",
        "known in verl, always on here: teachers have devices of their own; delete it",
    ),
    (f"{_DISTANCE}.log_prob_min_clamp", f"{_LATER}; {_DISTANCE}.loss_max_clamp bounds the loss of a token"),
    (f"{_DISTANCE}.policy_loss_mode", "known in verl; there is one policy loss: actor_rollout_ref.actor.policy_loss"),
    (f"{_DISTANCE}.clip_ratio*", "known in verl; there is one policy loss: actor_rollout_ref.actor.clip_ratio"),
    (f"{_DISTANCE}.use_policy_loss", f"in verl's older spelling; use {_DISTANCE}.use_task_rewards"),
    (f"{_DISTANCE}.jsd_beta", f"{_LATER}; delete it"),
    (f"{_DISTANCE}.use_chunked_topk", "known in verl, always on here; delete it"),
    (
        "transfer_queue",
        "known in verl; TransferQueue is the default, trainer.use_v1=false does without it; see trainer.v1.buffer",
    ),
    ("skip", f"{_LATER}; delete it"),
    ("global_profiler", f"{_LATER}; delete it"),
    ("ray_kwargs", "known in verl; see ray.*"),
    ("ray_init", "known in verl; see ray.*"),
    ("hydra", "no Hydra here: recipes compose by `defaults:`, see docs/configuration.md"),
)


def advice(key: str) -> str:
    """What to do about a key of verl's that is not in the schema; empty when verl does not know it either."""
    return next((answer for entry, answer in ANSWERS if _covers(entry, key)), "")


def _covers(entry: str, key: str) -> bool:
    if entry.endswith("*"):
        return key.startswith(entry[:-1])
    return key == entry or key.startswith(f"{entry}.")
