"""One program, run to its end or to a limit. Invariant: once it began the call returns within `wall_s` and a moment,
nothing of the program lives on, and its output is bounded.

Limits hold on any Linux: CPU seconds, address space, file size, processes. Where the kernel lets an ordinary user make
namespaces the program also has no network, sees no other process to signal, and writes into a file system of its own;
`Outcome.isolated` says whether it was so; if not, a process that left the program's session may live on, within the
limits. It reads what `nobody` may read. This holds code that is wrong or careless
apart from the run; for code that is hostile use a machine of its own behind reward.remote.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, Literal

from verl_core.config.schema.reward import SandboxConfig
from verl_core.errors import RewardError

_LAUNCH = Path(__file__).with_name("launch.py")
START_S = 30.0  # of the launcher; a machine that is too busy to start it says nothing about the program
_BURIAL_S = 10.0
_STDERR_CHARS = 300

Ending = Literal["ok", "failed", "time", "memory", "output"]
_LATE: Ending = "time"


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a program ended.

    Attributes:
        ending: ok = exit code 0; time = over its CPU or wall seconds; memory, output = over that limit; failed = any
            other way.
        stdout: what it printed, as far as the limit goes.
        detail: for people; empty when ok.
        isolated: whether it had namespaces of its own.
        why_not: what kept it from them.
    """

    ending: Ending
    stdout: str
    detail: str
    isolated: bool
    why_not: str = ""


def run_program(program: str, stdin: str, config: SandboxConfig) -> Outcome:
    """Run the text of a Python program.

    Raises:
        RewardError: the launcher does not work on this machine, or did not start within START_S.
    """
    with tempfile.TemporaryDirectory(prefix="sandbox-") as place, contextlib.ExitStack() as files:
        root = Path(place)
        root.chmod(0o755)
        work, source, given = root / "work", root / "program.py", root / "stdin"
        work.mkdir()
        work.chmod(0o777)
        source.write_text(program, errors="replace")
        given.write_text(stdin, errors="replace")
        streams = [files.enter_context((root / name).open(mode)) for name, mode in _STREAMS]
        account, told = os.pipe()
        command = [sys.executable, "-I", str(_LAUNCH), json.dumps(asdict(config)), str(told), str(source)]
        launcher = subprocess.Popen(
            command,
            cwd=work,
            stdin=streams[0],
            stdout=streams[1],
            stderr=streams[2],
            pass_fds=[told],
            env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            start_new_session=True,
        )
        os.close(told)
        with os.fdopen(account, "rb") as lines:
            started = bool(select.select([lines], [], [], START_S)[0])
            is_late = _wait(launcher, config.wall_s if started else 0.0)
            answers = [json.loads(text) for text in lines.read().splitlines()]
        return _outcome(answers, is_late, root, config)


_STREAMS = (("stdin", "rb"), ("stdout", "wb"), ("stderr", "wb"))


def _wait(launcher: subprocess.Popen[bytes], seconds: float) -> bool:
    """Whether it had to be killed. Its whole session goes with it; what left the session dies with its parent."""
    try:
        launcher.wait(timeout=seconds)
        is_late = False
    except subprocess.TimeoutExpired:
        is_late = True
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(launcher.pid, signal.SIGKILL)
    launcher.wait(timeout=_BURIAL_S)
    return is_late


def _outcome(answers: list[dict[str, Any]], is_late: bool, root: Path, config: SandboxConfig) -> Outcome:
    limit = config.file_mb << 20
    stdout, stderr = (_text(root / name, limit) for name in ("stdout", "stderr"))
    if not answers or (len(answers) < 2 and not is_late):
        raise RewardError(f"the sandbox does not work on this machine: {stderr[-_STDERR_CHARS:] or 'no word from it'}")
    if len(answers) < 2:
        ending, detail = _LATE, f"not done within {config.wall_s:g} s"
    else:
        ending, detail = _ending(answers[1]["status"], answers[1]["cpu_s"], stderr, config)
    return Outcome(ending, stdout, detail, answers[0]["isolated"], answers[0]["why"])


def _ending(status: int, cpu_s: float, stderr: str, config: SandboxConfig) -> tuple[Ending, str]:
    last = (stderr.strip().splitlines() or [""])[-1][-_STDERR_CHARS:]
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number == signal.SIGXFSZ:
            return "output", f"a file of more than {config.file_mb} MiB"
        if number in (signal.SIGXCPU, signal.SIGKILL) and cpu_s >= config.cpu_s - 0.5:
            return "time", f"{config.cpu_s} s of CPU are used up"
        return "failed", f"ended by {signal.Signals(number).name}"
    code = os.WEXITSTATUS(status)
    if code == 0:
        return "ok", ""
    if "MemoryError" in last:
        return "memory", f"more than {config.memory_mb} MiB"
    if "File too large" in last or "No space left" in last:
        return "output", last
    return "failed", f"exit code {code}: {last}"


def _text(path: Path, limit: int) -> str:
    file: IO[bytes]
    with path.open("rb") as file:
        return file.read(limit).decode(errors="replace")
