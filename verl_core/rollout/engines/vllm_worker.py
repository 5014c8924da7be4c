"""What runs inside vLLM's worker. Invariant: a push is applied whole or not at all, and between two forward passes.

It is received and checked before, on a thread of its own, while forward passes go on (`staging.py`).

Importing this module (vLLM does, for `worker_extension_cls`) registers the weight-transfer backend `verl_shm`. vLLM's
own CPU path leaves three traps, closed here: a failed update destroys the engine (so everything is checked before a
layer is touched), missing parameters are accepted, and a tied output layer keeps its old packed copy.
"""

from __future__ import annotations

from dataclasses import dataclass
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

from verl_core.errors import WeightError
from verl_core.rollout.engines.staging import Account, Staging
from verl_core.rollout.engines.vllm_adapter import install
from verl_core.rollout.engines.vllm_args import ADAPTER_KEY, SHM_BACKEND
from verl_core.weights.adapter import AdapterSpec, ExpectedAdapter
from verl_core.weights.expected import ExpectedWeights
from verl_core.weights.manifest import from_dict


@dataclass
class ShmInitInfo(WeightTransferInitInfo):
    """Nothing to agree on: the manifest that is staged says everything."""


@dataclass
class ShmUpdateInfo(WeightTransferUpdateInfo):
    """Attributes:
    version: of the push that is staged.
    """

    version: int = -1


class ShmTransferEngine(WeightTransferEngine[ShmInitInfo, ShmUpdateInfo]):
    """start: nothing. update: take what is staged. finish: load all in one call."""

    init_info_cls = ShmInitInfo
    update_info_cls = ShmUpdateInfo

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.adapter = adapter_in(self.vllm_config)
        folder = self.model_config.model
        self.expected: ExpectedWeights | ExpectedAdapter = (
            ExpectedWeights.from_folder(folder)
            if self.adapter is None
            else ExpectedAdapter.from_folder(self.adapter, folder)
        )
        self.staging = Staging(self.expected)
        self._taken: dict[str, torch.Tensor] = {}

    def init_transfer_engine(self, init_info: ShmInitInfo) -> None:
        """Nothing to open."""

    def start_weight_update(self) -> None:
        """Forget an update that was never finished."""
        self._taken = {}

    def receive_weights(self, update_info: ShmUpdateInfo) -> None:
        """Take a verified push. Raises WeightError with the engine untouched."""
        self._taken = self.staging.take(update_info.version)

    def finish_weight_update(self) -> None:
        """Load it into the model; an error here leaves the model unusable."""
        model: Any = self.model
        try:
            initialize_layerwise_reload(model)
            model.load_weights(iter(self._taken.items()))
            finalize_layerwise_reload(model, self.model_config)
            repack_tied_head(model)
        finally:
            self._taken = {}
            self.staging.drop()

    def shutdown(self) -> None:
        """Let go of the mappings."""
        self._taken = {}
        self.staging.close()


def adapter_in(vllm_config: Any) -> AdapterSpec | None:
    """The adapter that `vllm_args` wrote down for this engine."""
    found = (vllm_config.additional_config or {}).get(ADAPTER_KEY)
    return None if found is None else AdapterSpec.from_dict(found)


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
    weight_transfer_engine: Any

    def verl_stage(self, manifest: dict[str, Any]) -> Account:
        """Start to receive a push; `manifest` is a WeightManifest as plain values."""
        return self._staging.begin(from_dict(manifest))

    def verl_staged(self) -> Account:
        """How far it is."""
        return self._staging.account()

    def verl_start_adapter(self) -> None:
        """Hold the adapter that the run starts from. Raises ModelError: it cannot be read."""
        spec, expected = self._engine.adapter, self._engine.expected
        if spec is not None and isinstance(expected, ExpectedAdapter):
            install(self.model_runner, spec, expected.start(spec))

    def verl_adapter_missing(self, version: int) -> str:
        """Why the adapter of this version cannot be swapped in; empty when it can."""
        try:
            self._adapter_of(version)
        except WeightError as error:
            return str(error)
        return ""

    def verl_swap_adapter(self, version: int) -> None:
        """Replace the adapter by the staged one.

        Raises:
            WeightError: it is not there; nothing was touched.
        """
        spec = self._engine.adapter
        if spec is None:
            raise WeightError("this engine serves whole weights, not an adapter")
        tensors = self._adapter_of(version)
        try:
            install(self.model_runner, spec, tensors)
        finally:
            del tensors
            self._staging.drop()

    def _adapter_of(self, version: int) -> dict[str, torch.Tensor]:
        try:
            return self._staging.take(version)
        except WeightError as error:
            raise WeightError(f"the staged adapter is missing: {error}") from error

    @property
    def _engine(self) -> ShmTransferEngine:
        engine: ShmTransferEngine = self.weight_transfer_engine
        return engine

    @property
    def _staging(self) -> Staging:
        return self._engine.staging

    def verl_zero_kv(self) -> None:
        """Zero every KV block: on a CPU, NaN in a freed block reaches later requests, as masked scores multiply it."""
        for cache in self.model_runner.kv_caches:
            for tensor in cache if isinstance(cache, list | tuple) else (cache,):
                tensor.zero_()


if SHM_BACKEND not in WeightTransferEngineFactory._registry:
    WeightTransferEngineFactory.register_engine(SHM_BACKEND, ShmTransferEngine)
