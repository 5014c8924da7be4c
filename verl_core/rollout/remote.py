"""RemoteServers and RemoteAgents: a rollout side in another Ray cluster, as the trainer uses one in its own.

Invariant: they decide nothing. Each command is done by the side's own Servers or agent manager, through its port.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from verl_core.config.schema import RunConfig
from verl_core.rollout.agent_manager import AgentLoopManagerTQ
from verl_core.rollout.interface import GateMode
from verl_core.rollout.port import PortClient, PortServer
from verl_core.rollout.server_state import ServerState
from verl_core.rollout.servers import Servers
from verl_core.rollout.usage import ServerUsage
from verl_core.trajectory import Prompt
from verl_core.weights.interface import WeightManifest

# Over what the commands take of the servers' own time: their errors, which say more, come first.
GRACE_S = 30.0
SHORT_S = 90.0

COMMANDS = frozenset(
    {
        *(f"servers.{name}" for name in ("version", "health", "states", "usage", "update_weights", "begin_update")),
        *(f"servers.{name}" for name in ("settle", "sleep", "wake", "abort", "gate")),
        "agents.dispatch",
        "agents.reset",
    }
)


def port_of(servers: Servers, agents: AgentLoopManagerTQ, ip: str) -> PortServer:
    """The port of a rollout side."""
    return PortServer({"servers": servers, "agents": agents}, COMMANDS, ip)


class RemoteServers(Servers):
    """Has no handles: the actors live in a cluster that this process has no way into."""

    def __init__(self, config: RunConfig, client: PortClient) -> None:
        super().__init__(config, "", {})
        self._client, self._long_s = client, self._timeout_s + GRACE_S

    def version(self) -> int:
        """See Servers."""
        return int(self._client.call("servers.version", seconds=self._long_s))

    def health(self) -> None:
        """See Servers."""
        self._client.call("servers.health", seconds=SHORT_S)

    def states(self) -> dict[str, ServerState | str]:
        """See Servers."""
        states: dict[str, ServerState | str] = self._client.call("servers.states", seconds=SHORT_S)
        return states

    def usage(self) -> dict[str, ServerUsage]:
        """See Servers."""
        usage: dict[str, ServerUsage] = self._client.call("servers.usage", seconds=SHORT_S)
        return usage

    def update_weights(self, manifest: WeightManifest) -> None:
        """See Servers."""
        self._client.call("servers.update_weights", manifest, seconds=self._long_s)
        self.under_way = None

    def begin_update(self, manifest: WeightManifest) -> None:
        """See Servers."""
        self._client.call("servers.begin_update", manifest, seconds=self._long_s)
        self.under_way = manifest.version

    def settle(self) -> None:
        """See Servers."""
        self._client.call("servers.settle", seconds=self._long_s)
        self.under_way = None

    def sleep(self, level: int = 1, abort: bool = True) -> None:
        """See Servers."""
        self._client.call("servers.sleep", level, abort, seconds=self._long_s)

    def wake(self) -> None:
        """See Servers."""
        self._client.call("servers.wake", seconds=self._long_s)

    def abort(self) -> int:
        """See Servers."""
        return int(self._client.call("servers.abort", seconds=self._long_s))

    def gate(self, mode: GateMode) -> None:
        """See Servers."""
        self._client.call("servers.gate", mode, seconds=self._long_s)

    def shutdown(self, timeout_s: float = 30.0) -> None:
        """Nothing: they end with their own cluster."""


class RemoteAgents:
    """What the trainer uses of AgentLoopManagerTQ."""

    def __init__(self, client: PortClient) -> None:
        self._client = client

    def dispatch(self, prompts: Sequence[Prompt]) -> None:
        """See AgentLoopManagerTQ."""
        self._client.call("agents.dispatch", list(prompts), seconds=SHORT_S)

    def reset(self) -> None:
        """See AgentLoopManagerTQ."""
        self._client.call("agents.reset", seconds=SHORT_S)

    def set_servers(self, servers: Mapping[str, Any]) -> None:
        """Nothing: the rollout side told its workers itself."""

    def shutdown(self) -> None:
        """Hang up; the workers end with their own cluster."""
        self._client.close()
