"""What runs inside vLLM's worker. Invariant: a push is applied whole or not at all, and between two forward passes.

Importing this module (vLLM does, for `worker_extension_cls`) registers the weight-transfer backend `verl_shm`. vLLM's
own CPU path leaves three traps, closed here: a failed update destroys the engine (so everything is checked before a
layer is touched), missing parameters are accepted, and a tied output layer keeps its old packed copy.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
from vllm.platforms import current_platform

from verl_core.rollout.engines.vllm_args import SHM_BACKEND
from verl_core.weights.expected import ExpectedWeights
from verl_core.weights.manifest import from_dict
from verl_core.weights.segment import Segment
from verl_core.weights.shm import ShmReceiver


@dataclass
class ShmInitInfo(WeightTransferInitInfo):
    """Nothing to agree on: the manifest says everything."""


@dataclass
class ShmUpdateInfo(WeightTransferUpdateInfo):
    """Attributes:
    manifest: a WeightManifest as plain values.
    """

    manifest: dict[str, Any] = field(default_factory=dict)


class ShmTransferEngine(WeightTransferEngine[ShmInitInfo, ShmUpdateInfo]):
    """start: nothing. update: map, verify and hold. finish: load all in one call."""

    init_info_cls = ShmInitInfo
    update_info_cls = ShmUpdateInfo

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._expected = ExpectedWeights.from_folder(self.model_config.model)
        self._staged: dict[str, torch.Tensor] = {}
        self._segments: list[Segment] = []

    def init_transfer_engine(self, init_info: ShmInitInfo) -> None:
        """Nothing to open."""

    def start_weight_update(self) -> None:
        """Forget an update that was never finished."""
        self._drop()

    def receive_weights(self, update_info: ShmUpdateInfo) -> None:
        """Hold a verified push. Raises WeightError with the engine untouched."""
        tensors, self._segments = ShmReceiver().mapped(from_dict(update_info.manifest))
        try:
            self._staged = self._expected.check(tensors)
        except BaseException:
            self._drop()
            raise

    def finish_weight_update(self) -> None:
        """Load what is held into the model; an error here leaves the model unusable."""
        model: Any = self.model
        try:
            initialize_layerwise_reload(model)
            model.load_weights(iter(self._staged.items()))
            finalize_layerwise_reload(model, self.model_config)
            repack_tied_head(model)
        finally:
            self._drop()

    def shutdown(self) -> None:
        """Let go of the mappings."""
        self._drop()

    def _drop(self) -> None:
        self._staged = {}
        while self._segments:
            self._segments.pop().close()


def repack_tied_head(model: torch.nn.Module) -> None:
    """Pack a tied output layer again from the embedding (float32 linears are packed copies on a CPU)."""
    if not current_platform.is_cpu():
        return
    for module in model.modules():
        if isinstance(module, ParallelLMHead) and "cpu_linear" in vars(module):
            module.quant_method.process_weights_after_loading(module)


class WorkerExtension:
    """Mixed into vLLM's worker class; called by collective_rpc."""

    model_runner: Any

    def verl_zero_kv(self) -> None:
        """Zero every KV block: on a CPU, NaN in a freed block reaches later requests, as masked scores multiply it."""
        for cache in self.model_runner.kv_caches:
            for tensor in cache if isinstance(cache, list | tuple) else (cache,):
                tensor.zero_()


if SHM_BACKEND not in WeightTransferEngineFactory._registry:
    WeightTransferEngineFactory.register_engine(SHM_BACKEND, ShmTransferEngine)
