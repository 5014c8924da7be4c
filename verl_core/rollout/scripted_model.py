"""The torch model behind the scripted engine. Owner: the engine's one worker thread; nothing here is thread-safe.

Invariant: always a batch of one row in float32 on one torch thread, so logits are bit for bit a function of weights
and ids.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import torch

from verl_core.errors import ModelError
from verl_core.rollout.prefix_states import PrefixState, PrefixStates
from verl_core.weights.adapter import AdapterSpec, ExpectedAdapter, delta, modules_in
from verl_core.weights.expected import ExpectedWeights

_KEPT_BYTES = 256 << 20  # some thousand states of a tiny policy: siblings and repeated prompts share their work


class ScriptedModel:
    """A Hugging Face causal LM folder, for inference on a CPU.

    Args:
        adapter: what is pushed is an adapter, not whole weights.

    Attributes:
        end_ids: tokens that end a response, from generation_config.json, else config.json.
        ends: bool [V]; the same.
        vocab_size: ids below it are valid.
    """

    def __init__(self, folder: str, adapter: AdapterSpec | None = None) -> None:
        import transformers  # heavy, and only this engine needs it

        if not os.path.isdir(folder):
            raise ModelError(f"no model folder at {folder}. Set actor_rollout_ref.model.path to a Hugging Face folder.")
        fits = None if adapter is None else ExpectedAdapter.from_folder(adapter, folder)
        self._expected = fits or ExpectedWeights.from_folder(folder)
        loaded: Any = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        self._model = loaded.eval().requires_grad_(False)
        own = self._model.state_dict()
        self._adapter = adapter
        adapted = [] if fits is None else [f"{module}.weight" for module in modules_in(fits.shapes)]
        self._base = {name: own[name].clone() for name in adapted}
        if fits is not None and adapter is not None:
            self._load(self._merged(fits.start(adapter)))
        self._new_cache: Callable[[], Any] = lambda: transformers.DynamicCache(config=loaded.config)
        self._states = PrefixStates(_KEPT_BYTES)
        self.vocab_size = int(loaded.get_input_embeddings().num_embeddings)
        given = loaded.generation_config.eos_token_id
        given = loaded.config.eos_token_id if given is None else given
        self.end_ids = frozenset([given] if isinstance(given, int) else given or ())
        self.ends = torch.zeros(self.vocab_size, dtype=torch.bool)
        self.ends[list(self.end_ids)] = True

    def after(self, first: tuple[int, ...], added: tuple[int, ...], before: PrefixState | None) -> PrefixState:
        """State after `first` (one pass) and `added` (one token at a time).

        Args:
            before: state without the last id of `added`; needed when `added` is not empty.
        """
        state = self._states.get((first, added))
        if state is None:
            state = self._extend(before, added[-1:] if before is not None else first)
            self._states.put((first, added), state)
        return state

    def _extend(self, before: PrefixState | None, ids: tuple[int, ...]) -> PrefixState:
        cache = self._new_cache() if before is None else before.forked_cache()
        with torch.inference_mode():
            out = self._model(input_ids=torch.tensor([ids]), past_key_values=cache, use_cache=True, logits_to_keep=1)
        return PrefixState(out.logits[0, -1].float().clone(), out.past_key_values)

    def checked(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """What `install` may be given; touches nothing, so any thread may ask.

        Args:
            tensors: by Hugging Face name; an adapter where one is served.

        Raises:
            WeightError: the set is not complete, fits another model, or is not finite.
        """
        found = self._expected.check(tensors)
        return found if self._adapter is None else self._merged(found)

    def install(self, complete: Mapping[str, torch.Tensor]) -> None:
        """Replace all weights that change.

        Args:
            complete: what `checked` gave; copied.
        """
        self._load(complete)
        self._states.clear()

    def _load(self, complete: Mapping[str, torch.Tensor]) -> None:
        own = self._model.state_dict()
        with torch.no_grad():
            for name, tensor in complete.items():
                own[name].copy_(tensor)

    def _merged(self, adapter: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The adapted weights, whole."""
        scaling = 1.0 if self._adapter is None else self._adapter.scaling
        modules = modules_in(adapter)
        return {f"{m}.weight": self._base[f"{m}.weight"] + delta(adapter, m, scaling) for m in modules}
