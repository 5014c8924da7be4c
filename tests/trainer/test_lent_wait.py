"""While lent devices are out, groups are waited for, scored and dropped: the step's spool gets them then."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from verl_core.trainer.separate_async import SeparateAsyncTrainer


def test_what_arrives_while_devices_are_lent_is_kept() -> None:
    kept: list[tuple[int, list[str]]] = []
    closed: list[int] = []

    def spool(step: int) -> Any:
        return SimpleNamespace(append=lambda groups: kept.append((step, groups)), close=lambda: closed.append(step))

    trainer: Any = SeparateAsyncTrainer.__new__(SeparateAsyncTrainer)
    trainer.session = SimpleNamespace(
        lent=SimpleNamespace(is_out=True, lending=SimpleNamespace(threshold=3)),
        config=SimpleNamespace(data=SimpleNamespace(train_batch_size=4)),
        files=SimpleNamespace(spool=spool),
        buffer=SimpleNamespace(
            sampleable=lambda step: 1, wait_for=lambda groups, step, on_arrival: on_arrival(["a dropped group"])
        ),
    )
    trainer.on_sample_begin(2)
    assert kept == [(2, ["a dropped group"])]
    assert closed == [2]
