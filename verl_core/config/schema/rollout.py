"""`actor_rollout_ref.rollout.*`: how responses are sampled and on which servers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass
class ValConfig:
    """Sampling of validation; greedy by default."""

    n: int = 1
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = -1


@dataclass
class AgentConfig:
    """Attributes:
    num_workers: processes that run agent loops.
    default_agent_loop: registered name, or `package.module.Class` of your own.
    """

    num_workers: int = 1
    default_agent_loop: str = "single_turn_agent"


@dataclass
class MultiTurnConfig:
    """Read by `tool_agent`, and by agents of your own that build on it.

    Attributes:
        enable: sessions of several turns with tools between them; goes with agent.default_agent_loop=tool_agent.
        max_assistant_turns: turns of the policy in a session; the last one's calls are not run.
        max_turn_length: tokens of one turn; null = what is left of data.max_response_length.
        max_parallel_calls: calls of one turn that are run, side by side.
        max_tool_response_length: tokens of one answer (verl counts characters); longer ones are cut.
        tool_response_truncate_side: which part stays, as in verl: `left` the beginning, `right` the end, `middle` both.
        tool_timeout_s: seconds of one call; a tool's own limit wins where it is shorter.
        format: how calls are written in a turn.
        tools: short names, or `package.module.Class`.
        tool_config_path: or a YAML file in verl's layout, for classes that are built with arguments.
    """

    enable: bool = False
    max_assistant_turns: int = 8
    max_turn_length: int | None = None
    max_parallel_calls: int = 1
    max_tool_response_length: int = 256
    tool_response_truncate_side: Literal["left", "right", "middle"] = "middle"
    tool_timeout_s: float = 20.0
    format: Literal["hermes", "json"] = "hermes"
    tools: list[str] = field(default_factory=list)
    tool_config_path: str = ""

    @property
    def tools_limit_s(self) -> float:
        """Seconds that a session may spend in tools, the calls of a turn side by side."""
        return self.max_assistant_turns * self.tool_timeout_s if self.enable else 0.0


@dataclass
class ScriptedLengthsConfig:
    """Response lengths that the scripted engine draws instead of letting the policy end its responses: log-normal.

    Attributes:
        median: tokens; 0 = the policy ends them.
        p99: 99th percentile, tokens.
        cap: longest, tokens; 0 = data.max_response_length.
    """

    median: float = 0.0
    p99: float = 0.0
    cap: int = 0


@dataclass
class RolloutConfig:
    """Attributes:
    name: `vllm`, or `scripted` (a deterministic torch engine for exact tests and simulations).
    engine_process: vllm only. `inproc` = engine in the server actor's process (CPU), `async` = vLLM's AsyncLLM,
        `auto` = inproc on a CPU, async on GPUs.
    num_servers: inference servers; null = one per tensor_model_parallel_size devices.
    nnodes x n_gpus_per_node: devices of the servers alone, separate_async only; n_gpus_per_node null = the trainer's.
    n: sessions per prompt while training.
    top_p, top_k: 1.0 and -1 unless you accept that rollout and trainer log-probs then differ.
    max_model_len: tokens; null = data.max_prompt_length + data.max_response_length.
    kv_cache_bytes: CPU only; null = 256 MiB.
    seed: every request's seed is a hash of (seed, uid, session, tokens done).
    request_timeout_s: budget of one generation, retries included, and of all generations of a session of several turns;
        time at a closed gate does not count.
    pause_timeout_s: longest time that a request may wait while generation is paused; async modes.
    max_num_seqs: requests that run together on a server; others wait their turn.
    scripted_delay_s: scripted only; seconds that a token takes.
    update_weights_backend: `shm` (same host), `ipc` (same GPU), `nccl` (other GPUs), `store` (through the run
        directory); `auto` = store with ray.mode=split, else shm on a CPU, and ipc or, in separate_async, nccl on GPUs.
    update_weights_bucket_megabytes: largest piece moved at once.
    """

    name: Literal["vllm", "scripted"] = "vllm"
    engine_process: Literal["auto", "inproc", "async"] = "auto"
    num_servers: int | None = None
    nnodes: int = 0
    n_gpus_per_node: int | None = None
    n: int = 8
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    tensor_model_parallel_size: int = 1
    gpu_memory_utilization: float = 0.5
    max_num_seqs: int = 256
    max_model_len: int | None = None
    kv_cache_bytes: int | None = None
    enable_prefix_caching: bool = True
    seed: int = 42
    request_timeout_s: float = 600.0
    pause_timeout_s: float = 3600.0
    scripted_delay_s: float = 0.0
    scripted_lengths: ScriptedLengthsConfig = field(default_factory=ScriptedLengthsConfig)
    update_weights_backend: Literal["auto", "shm", "ipc", "nccl", "store"] = "auto"
    update_weights_bucket_megabytes: int = 512
    val_kwargs: ValConfig = field(default_factory=ValConfig)
    agent: AgentConfig = field(default_factory=AgentConfig)
    multi_turn: MultiTurnConfig = field(default_factory=MultiTurnConfig)
