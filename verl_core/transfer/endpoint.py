"""Endpoint: where a store lives, as a small document. Invariant: a joiner either reaches the very store the document
describes (same epoch, same TransferQueue version, same order of units) or gets a `StoreError`.

The order of the units is part of the protocol: a row's unit is its index modulo their number."""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from verl_core.errors import StoreError

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Address:
    """One TransferQueue server: its id, IP, and ports by socket name."""

    id: str
    ip: str
    ports: dict[str, int]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Attributes:
    epoch: hex, new for every launch; also kept inside the store.
    version: of TransferQueue at the host; its wire format is pickle, so both sides must agree.
    controller, units: servers; `units` in routing order.
    bell_in, bell_out: ZeroMQ addresses of the doorbell: where to push, where to subscribe.
    """

    epoch: str
    version: str
    controller: Address
    units: tuple[Address, ...]
    bell_in: str
    bell_out: str

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {"format": FORMAT, **asdict(self), "units": [asdict(unit) for unit in self.units]}

    @classmethod
    def from_dict(cls, document: dict[str, Any]) -> Endpoint:
        """Inverse of `to_dict`.

        Raises:
            StoreError: another format, or not an endpoint at all.
        """
        if document.get("format") != FORMAT:
            raise StoreError(
                f"store endpoint has format {document.get('format')!r}, this process reads {FORMAT}; "
                "run the same verl-flyte version in every process of the run"
            )
        try:
            fields = {key: value for key, value in document.items() if key != "format"}
            controller, units = Address(**fields["controller"]), tuple(Address(**unit) for unit in fields["units"])
            return cls(**{**fields, "controller": controller, "units": units})
        except (KeyError, TypeError) as error:
            raise StoreError(f"store endpoint is incomplete ({error}); delete it and start the store again") from error

    def publish(self, path: Path) -> None:
        """Write the document to `path`, atomically."""
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(descriptor, "w") as file:
            json.dump(self.to_dict(), file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)

    @classmethod
    def read(cls, path: Path) -> Endpoint:
        """The document at `path`.

        Raises:
            StoreError: missing or unreadable.
        """
        try:
            return cls.from_dict(json.loads(path.read_text()))
        except FileNotFoundError as error:
            raise StoreError(f"no store endpoint at {path}; start the run's session (or its cluster) first") from error
        except (json.JSONDecodeError, AttributeError) as error:
            raise StoreError(f"the store endpoint at {path} is not a JSON document: {error}") from error
