"""What vLLM is told at start. Invariant: what changes tokens or log-probs is set here, nothing is left to a default.

Log-probs are those of the sampling distribution (`processed_logprobs`): after temperature, top-p and top-k. The model
folder's generation_config.json gives its end tokens and nothing else; sampling never picks up a top_p hidden in it.
Ids go in and ids come out, so no tokenizer is loaded.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from verl_core.config.schema import RunConfig
from verl_core.errors import ModelError
from verl_core.weights.adapter import AdapterSpec, served_adapter, server_rank
from verl_core.weights.interface import PULLED
from verl_core.weights.sender import run_backend

WORKER_EXTENSION = "verl_core.rollout.engines.vllm_worker.WorkerExtension"
SHM_BACKEND = "verl_shm"
ADAPTER_KEY = "verl_adapter"
DEFAULT_KV_BYTES = 256 << 20
SMALL_MODEL_BYTES = 64 << 20
CPU_BATCHED_TOKENS = 4096


def process_environment(config: RunConfig, device: str, num_servers: int = 1) -> dict[str, str]:
    """Variables that must be set in the server's process before vLLM is imported.

    On a CPU: the engine stays in the process; nothing is compiled just in time (the first request with log-probs would
    wait ten seconds for it); vLLM does not pin itself to a core. OpenMP threads sleep rather than spin, since the
    trainer shares the cores; a small model is faster on one.
    """
    common = {
        "VLLM_NO_USAGE_STATS": "1",  # its thread fights for the GIL for six seconds after start
        "DO_NOT_TRACK": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",  # the model is a folder; without this vLLM asks the hub about it
    }
    if device != "cpu":
        return common
    cores = max(1, (os.cpu_count() or 1) // num_servers)
    threads = 1 if weight_bytes(config.actor_rollout_ref.model.path) < SMALL_MODEL_BYTES else cores
    return common | {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "TORCHDYNAMO_DISABLE": "1",
        "OMP_NUM_THREADS": str(threads),
        "OMP_WAIT_POLICY": "PASSIVE",
    }


def engine_arguments(config: RunConfig, device: str) -> dict[str, Any]:
    """Keyword arguments of vLLM's EngineArgs; imports vLLM."""
    from vllm.config.weight_transfer import WeightTransferConfig

    rollout, path = config.actor_rollout_ref.rollout, config.actor_rollout_ref.model.path
    backend = run_backend(config, device)
    common: dict[str, Any] = {
        "model": path,
        "skip_tokenizer_init": True,
        "max_model_len": config.max_model_len,
        "max_num_seqs": rollout.max_num_seqs,
        "scheduling_policy": "priority",  # by when a request was first sent; all alike, it is first come first served
        "enable_prefix_caching": rollout.enable_prefix_caching,
        "seed": rollout.seed,
        "logprobs_mode": "processed_logprobs",
        "generation_config": "vllm",
        "disable_log_stats": True,
        "worker_extension_cls": WORKER_EXTENSION,
        "weight_transfer_config": WeightTransferConfig(backend=SHM_BACKEND if backend in PULLED else backend),
        "tensor_parallel_size": rollout.tensor_model_parallel_size,
        **adapter_arguments(served_adapter(config.actor_rollout_ref.model)),
    }
    if device == "cpu":
        return common | {
            "dtype": "float32" if rollout.dtype == "auto" else rollout.dtype,  # half precision is slower without AVX512
            "enforce_eager": True,
            "block_size": 32,
            # vLLM 0.32 rewinds the generator of a seeded request whose prompt it splits, which a CPU generator cannot:
            # the engine dies. So prompts are never split, and the longest must fit into one step.
            "enable_chunked_prefill": False,
            "max_num_batched_tokens": max(CPU_BATCHED_TOKENS, config.max_model_len),
            "kv_cache_memory_bytes": rollout.kv_cache_bytes or DEFAULT_KV_BYTES,
        }
    return common | {
        "dtype": rollout.dtype,
        "gpu_memory_utilization": rollout.gpu_memory_utilization,
        "enable_sleep_mode": True,
    }


def adapter_arguments(adapter: AdapterSpec | None) -> dict[str, Any]:
    """What makes vLLM keep room for the policy's adapter; the worker reads `additional_config`."""
    if adapter is None:
        return {}
    return {
        "enable_lora": True,
        "max_loras": 1,
        "max_lora_rank": server_rank(adapter.rank),
        "additional_config": {ADAPTER_KEY: adapter.to_dict()},
    }


def weight_bytes(folder: str | Path) -> int:
    """Bytes of the folder's safetensors files; 0 when there are none."""
    return sum(file.stat().st_size for file in Path(folder).glob("*.safetensors"))


def stop_token_ids(folder: str | Path) -> list[int]:
    """End tokens of the model, ascending: those of generation_config.json, else of config.json.

    Raises:
        ModelError: neither names one; every response would run to its limit.
    """
    for name in ("generation_config.json", "config.json"):
        path = Path(folder) / name
        if not path.exists():
            continue
        try:
            value = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id")
        except (OSError, json.JSONDecodeError) as error:
            raise ModelError(f"{path} cannot be read: {error}") from error
        if value is not None:
            return sorted(value) if isinstance(value, list) else [int(value)]
    raise ModelError(f"{folder} names no end token: add eos_token_id to its generation_config.json")
