"""Says whether the environment is whole: what must be there imports, what must stay out is out."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import time

NEEDED = ("torch", "transformers", "ray", "transfer_queue", "flytekit", "flytekitplugins.ray", "kubernetes", "vllm")
BANNED = ("torchvision", "torchaudio", "torchcodec")


def faults() -> list[str]:
    """What is wrong, each with what to do about it; empty when nothing is."""
    found = [
        f"{name} is installed, and was built for another torch: {sys.executable} -m pip uninstall -y {name}"
        for name in BANNED
        if importlib.util.find_spec(name) is not None
    ]
    for name in NEEDED:
        try:
            importlib.import_module(name)
        except ImportError as error:
            found.append(f"{name} cannot be imported ({error}): remove .venv and run `make env` again")
    if "torch" in sys.modules and sys.modules["torch"].version.cuda is not None:
        found.append("torch is a CUDA build, the lock wants the CPU one: see the head of requirements/cpu.lock")
    return found


def main() -> int:
    """Print the verdict; the exit code is the number of faults."""
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    started = time.monotonic()
    found = faults()
    for fault in found:
        print(f"environment: {fault}", file=sys.stderr)
    if not found:
        print(f"environment: whole (checked in {time.monotonic() - started:.0f} s)")
    return len(found)


if __name__ == "__main__":
    sys.exit(main())
