"""The endpoint document: whole or refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from verl_core.errors import StoreError
from verl_core.transfer.endpoint import Address, Endpoint

ENDPOINT = Endpoint(
    epoch="e1",
    version="0.1.11",
    controller=Address("C", "10.0.0.1", {"request_handle_socket": 1, "handshake_socket": 2}),
    units=(Address("B", "10.0.0.2", {"put_get_socket": 3}), Address("A", "10.0.0.3", {"put_get_socket": 4})),
    bell_in="tcp://10.0.0.1:5",
    bell_out="tcp://10.0.0.1:6",
)


def test_round_trip_keeps_the_order_of_the_units(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "endpoint.json"
    ENDPOINT.publish(path)
    assert Endpoint.read(path) == ENDPOINT
    assert [unit["id"] for unit in json.loads(path.read_text())["units"]] == ["B", "A"]


def test_publishing_replaces_in_one_stroke(tmp_path: Path) -> None:
    path = tmp_path / "endpoint.json"
    path.write_text("old")
    ENDPOINT.publish(path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["endpoint.json"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not a JSON document"),
        ("[]", "not a JSON document"),
        ("{}", "has format None"),
        ('{"format": 2}', "has format 2"),
        ('{"format": 1, "epoch": "x"}', "incomplete"),
    ],
)
def test_anything_else_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "endpoint.json"
    path.write_text(text)
    with pytest.raises(StoreError, match=message):
        Endpoint.read(path)


def test_a_missing_document_says_what_to_start(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="start the run's session"):
        Endpoint.read(tmp_path / "none.json")
