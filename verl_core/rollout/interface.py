"""RolloutEngine and LLMClient: the two seams of generation. Token ids in; ids, log-probs and weight versions out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

from verl_core.trajectory import Prompt, Segment, StopReason, Trajectory

if TYPE_CHECKING:
    from verl_core.weights.interface import WeightManifest  # brings torch, which agent workers do not need


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """One request's sampling. temperature 0 is greedy. `seed` makes the request's tokens a function of its prompt and
    weights (exactly so on one engine; batch composition may move bits on GPUs).

    Attributes:
        done: how many ids at the end of the prompt are the request's own, from attempts that were cut off; an engine
            is told by its server.
        since: when the request was first sent, seconds since the epoch, 0 = nobody says; an engine that has no room for
            all takes the lowest first. Told by the server, too.
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    seed: int = 0
    done: int = 0
    since: float = 0.0


@dataclass(frozen=True, slots=True)
class Generation:
    """What one request gave.

    Attributes:
        token_ids: the end token is included when it was sampled.
        log_probs: nats, of each token under the distribution it was sampled from (after temperature).
        stop_reason: stop (end token), length, or abort (cut off; what there is is kept).
        segments: weight version of each run of tokens; lengths sum to len(token_ids).
        worked_s: seconds that an engine had the request, as the server measured; never part of a comparison.
    """

    token_ids: tuple[int, ...]
    log_probs: tuple[float, ...]
    stop_reason: StopReason
    segments: tuple[Segment, ...]
    worked_s: float = field(default=0.0, compare=False)


@dataclass(frozen=True, slots=True)
class Attempt:
    """What a server must know of a request that may be cut off and sent again.

    Attributes:
        done: tokens at the end of the prompt ids that earlier attempts sampled.
        work_s: seconds an engine may still work for it.
        pause_s: seconds it may still wait at a closed gate.
        since: when the first attempt was sent, seconds since the epoch: whoever was cut off keeps its place in the
            queue. Without that a group waits for one unlucky session while newer ones overtake it.
    """

    done: int
    work_s: float
    pause_s: float
    since: float = 0.0


class RolloutEngine(Protocol):
    """An inference engine inside one server process. All methods are coroutines on the server's loop."""

    version: int

    async def start(self) -> None:
        """Load the model; returns when requests are served."""

    async def generate(self, request_id: str, prompt_ids: Sequence[int], params: SamplingParams) -> Generation:
        """One completion. Cancelling the task frees the engine's side.

        Raises:
            RolloutError: the request can never succeed (too long, empty, unknown id).
            EngineDead: the engine died.
        """

    async def abort_all(self) -> int:
        """Cut every running request off; each returns what it has with stop_reason `abort`. Returns how many."""

    async def sleep(self, level: int = 1) -> None:
        """Give device memory back to the trainer (no memory on a CPU, but requests must not run afterwards)."""

    async def wake(self) -> None:
        """Undo `sleep`."""

    async def stage_weights(self, manifest: WeightManifest) -> None:
        """Receive and check all tensors while requests run; what was staged before is forgotten. Raises WeightError
        untouched."""

    async def swap_weights(self) -> None:
        """Apply what is staged, all tensors at once, reset all caches, set `version`. Requests that run go on under
        the new weights. Raises EngineDead if it breaks half way, WeightError untouched when nothing is staged."""

    async def update_weights(self, manifest: WeightManifest) -> None:
        """Both, one after the other."""

    async def health(self) -> None:
        """Raise EngineDead if the engine cannot serve."""

    async def shutdown(self) -> None:
        """Stop; frees everything."""


class LLMClient(Protocol):
    """What an agent loop talks to. Owner: the agent worker."""

    async def generate(self, request_id: str, prompt_ids: Sequence[int], params: SamplingParams) -> Generation:
        """One completion from some server of the pool. A server that dies or takes no requests is left for another one.
        Whether a completion may come back cut off (`abort`) depends on the client; see `clients.llm_client`."""


class AgentLoop(Protocol):
    """One session of a group. User classes keep this contract; built by the worker as cls(config)."""

    async def run(self, prompt: Prompt, session: int, client: LLMClient) -> list[Trajectory]:
        """The trajectories of the session, index 0.. in order. Raising fails this session, not the run."""


GateMode = Literal["open", "park", "reject"]
