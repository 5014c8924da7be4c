"""The rules of the house, checked on the source: who may import whom, how long things may be."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PRODUCT = ("verl_core", "tasks", "workflows")
MAX_FILE_LINES, MAX_FUNCTION_LINES, MAX_TASK_LINES = 400, 80, 30
VAGUE = {"utils", "util", "helpers", "helper", "misc", "common", "manager", "stuff"}


def sources(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """(line, dotted module) of every import anywhere in the file, function bodies and importlib calls included."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = ("." * node.level) + (node.module or "")
            yield node.lineno, module
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in {"import_module", "__import__"} and isinstance(node.args[0].value, str):
                yield node.lineno, node.args[0].value


def importers(library: str, folders: tuple[str, ...] = PRODUCT) -> list[str]:
    """`file:line` of every import of the library, sub-modules included."""
    return [
        f"{relative(path)}:{line}"
        for path in sources(*folders)
        for line, name in imports(path)
        if name == library or name.startswith(library + ".")
    ]


def outside(found: list[str], *allowed: str) -> list[str]:
    return [place for place in found if not place.startswith(allowed)]


def test_the_walker_sees_every_form_of_import(tmp_path: Path) -> None:
    file = tmp_path / "sample.py"
    file.write_text("import a.b\nfrom c import d\ndef f():\n    import e\n    importlib.import_module('g.h')\n")
    assert {name for _, name in imports(file)} == {"a.b", "c", "c.d", "e", "g.h"}


def test_verl_core_knows_nothing_of_flyte() -> None:
    for library in ("flytekit", "flytekitplugins", "flyteidl", "tasks", "workflows"):
        assert importers(library, ("verl_core",)) == []


def test_only_transfer_imports_transfer_queue() -> None:
    assert outside(importers("transfer_queue"), "verl_core/transfer/") == []


def test_only_rollout_and_weight_receivers_import_vllm() -> None:
    assert outside(importers("vllm"), "verl_core/rollout/", "verl_core/weights/") == []


def test_only_engine_and_data_import_transformers() -> None:
    """engine trains the models; data may read tokenizers, and only those. Two packages make model folders before a run
    starts: warm_start trains the tiny policy, models writes folders that others read."""
    allowed = (
        "verl_core/engine/",
        "verl_core/data/",
        "verl_core/rollout/",
        "verl_core/warm_start/",
        "verl_core/models/",
    )
    assert outside(importers("transformers"), *allowed) == []
    classes = [place for path in sources("verl_core/data", "verl_core/rollout") for place in model_imports(path)]
    assert classes == []


def model_imports(path: Path) -> Iterator[str]:
    """Names of transformers that are neither a tokenizer nor a configuration."""
    for line, name in imports(path):
        last = name.rsplit(".", 1)[-1]
        if name.startswith("transformers.") and not ("Tokenizer" in last or last.endswith("Config")):
            yield f"{relative(path)}:{line} {name}"


def test_arrows_point_down() -> None:
    """config and algorithms depend on nothing of the upper floors; nobody below the trainer imports the trainer,
    and nobody fine-tuning."""
    floor = ("config", "errors", "deadline")
    for path in sources("verl_core/config"):
        assert [n for _, n in imports(path) if n.startswith("verl_core.") and n.split(".")[1] not in floor] == []
    heavy = ("ray", "vllm", "transfer_queue", "transformers")
    for path in sources("verl_core/algorithms"):
        assert [n for _, n in imports(path) if n.split(".")[0] in heavy] == []
    assert outside(importers("verl_core.trainer", ("verl_core",)), "verl_core/trainer/", "verl_core/sft/") == []
    assert outside(importers("verl_core.sft", ("verl_core",)), "verl_core/sft/") == []
    workflows = [n for path in sources("workflows") for _, n in imports(path) if n.split(".")[0] in (*heavy, "torch")]
    assert workflows == []


@pytest.mark.parametrize(
    ("module", "banned"),
    [
        ("verl_core.config", ("torch", "ray", "vllm", "transfer_queue", "transformers", "flytekit")),
        ("verl_core.algorithms", ("ray", "vllm", "transfer_queue", "transformers", "flytekit")),
    ],
)
def test_importing_loads_nothing_heavy(module: str, banned: tuple[str, ...]) -> None:
    """Every module of the package, in a fresh interpreter: what ended up loaded is what counts."""
    folder = ROOT / module.replace(".", "/")
    names = [".".join(p.relative_to(ROOT).with_suffix("").parts) for p in folder.rglob("*.py") if p.stem[:2] != "__"]
    code = f"""
import importlib, sys
for name in {[module, *sorted(names)]!r}: importlib.import_module(name)
print(sorted(set({banned!r}) & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_files_are_short_documented_and_named_by_a_noun() -> None:
    faults = []
    for path in sources(*PRODUCT):
        text = path.read_text()
        if text.count("\n") > MAX_FILE_LINES:
            faults.append(f"{relative(path)}: {text.count(chr(10))} lines")
        if text.strip() and not ast.get_docstring(ast.parse(text)):
            faults.append(f"{relative(path)}: no module docstring")
        if path.stem in VAGUE:
            faults.append(f"{relative(path)}: a name that says nothing")
    assert faults == []


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def length(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def decorated(node: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    names = set()
    for decorator in node.decorator_list:
        target = decorator.func if isinstance(decorator, ast.Call) else decorator
        names.add(target.attr if isinstance(target, ast.Attribute) else getattr(target, "id", ""))
    return names


def test_functions_are_short_and_tasks_shorter() -> None:
    faults = []
    for path in sources(*PRODUCT):
        for node in functions(path):
            limit = MAX_TASK_LINES if decorated(node) & {"task", "dynamic", "workflow"} else MAX_FUNCTION_LINES
            if length(node) >= limit:
                faults.append(f"{relative(path)}:{node.lineno} {node.name}: {length(node)} lines, at most {limit}")
    assert faults == []


def guesses(node: ast.AST) -> bool:
    """getattr or hasattr on something called config: the schema says what is there."""
    called = isinstance(node, ast.Call) and getattr(node.func, "id", "") in {"getattr", "hasattr"}
    return called and "config" in ast.unparse(node.args[0])


def test_product_code_neither_asserts_nor_guesses_at_the_config() -> None:
    faults = []
    for path in sources(*PRODUCT):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Assert):
                faults.append(f"{relative(path)}:{node.lineno} assert")
            if isinstance(node, ast.ExceptHandler) and node.type is None:
                faults.append(f"{relative(path)}:{node.lineno} bare except")
            if guesses(node) and "verl_core/config/" not in relative(path):
                faults.append(f"{relative(path)}:{node.lineno} {ast.unparse(node)}")
    assert faults == []


def test_no_todo_is_left() -> None:
    marks = ("TO" + "DO", "FIX" + "ME", "X" + "XX")
    found = [
        f"{relative(p)}: {m}" for p in sources(*PRODUCT, "tests", "benchmarks") for m in marks if m in p.read_text()
    ]
    assert found == []
