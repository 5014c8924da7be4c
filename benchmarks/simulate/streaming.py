"""verl's separate_async, to compare with: training takes a mini-batch as soon as it is there, instead of waiting for
the whole batch. Invariant: feed, buffer, staleness policy and hooks are the product's; only the body of a step differs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from verl_core.trainer.metrics import staleness_metrics
from verl_core.trainer.separate_async import SeparateAsyncTrainer
from verl_core.trainer.stage import StageOutput

if TYPE_CHECKING:
    from benchmarks.simulate.actors import SimulatedPolicy


def streaming(parts: int) -> type[SeparateAsyncTrainer]:
    """separate_async that trains on `parts` mini-batches, one after the other."""

    class Streaming(SeparateAsyncTrainer):
        def step(self, step: int) -> StageOutput:
            session, policy = self.session, cast("SimulatedPolicy", self.session.policy)
            self.on_step_begin(step)
            session.feed.take_over(step, list)
            session.feed.top_up(step, session.buffer)
            rows = []
            for part in range(parts):
                size = session.config.data.train_batch_size * (part + 1) // parts
                size -= session.config.data.train_batch_size * part // parts
                groups = session.buffer.sample(size, step)
                mini = [row for group in groups for row in group.trajectories]
                policy.work([row.key for row in mini], 1.0)
                session.buffer.clear(groups)
                rows += mini
            session.scorer.score([])
            session.feed.close_step(step, session.buffer)
            policy.close([row.key for row in rows], step)
            self.on_step_end(step)
            counts = {"training/groups": float(len({row.uid for row in rows}))}
            session.sinks.log(step, {**counts, **staleness_metrics(rows, step - 1)})
            return StageOutput("update", step, "memory", "")

    return Streaming
