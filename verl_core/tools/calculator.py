"""`calc`: exact arithmetic on whole numbers and fractions. Invariant: nothing is evaluated but a small arithmetic
grammar, and no expression can take long or grow large."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from fractions import Fraction
from typing import Any

_MAX_CHARS, _MAX_DIGITS, _MAX_POWER = 200, 300, 64
_BINARY: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: lambda left, right: Fraction(left // right),
    ast.Mod: operator.mod,
}


class Calculator:
    """Tool: the value of an expression such as `37*48` or `(1/3 + 2) * 6`."""

    name = "calc"
    description = "Value of an arithmetic expression with + - * / // % ** and parentheses."
    parameters: dict[str, Any] = {  # noqa: RUF012  part of the Tool contract, never changed
        "type": "object",
        "properties": {"e": {"type": "string", "description": "the expression"}},
        "required": ["e"],
        "additionalProperties": False,
    }
    timeout_s = 5.0

    async def call(self, arguments: dict[str, Any]) -> str:
        """The exact value: a whole number, or a fraction a/b. Raises ValueError for anything else."""
        return str(value_of(arguments["e"]))


def value_of(expression: str) -> Fraction:
    """Exact value. Raises ValueError: too long, not arithmetic, a result too large, or a division by zero."""
    if len(expression) > _MAX_CHARS:
        raise ValueError(f"the expression has more than {_MAX_CHARS} characters")
    try:
        tree = ast.parse(expression.strip(), mode="eval").body
        return _value(tree)
    except ZeroDivisionError:
        raise ValueError("division by zero") from None
    except (SyntaxError, RecursionError, MemoryError):
        raise ValueError(f"{expression!r} is not an arithmetic expression") from None


def _value(node: ast.AST) -> Fraction:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return _small(Fraction(str(node.value)))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        inner = _value(node.operand)
        return -inner if isinstance(node.op, ast.USub) else inner
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        return _small(_BINARY[type(node.op)](_value(node.left), _value(node.right)))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        base, power = _value(node.left), _value(node.right)
        if power.denominator != 1 or abs(power) > _MAX_POWER:
            raise ValueError(f"a power must be a whole number from -{_MAX_POWER} to {_MAX_POWER}")
        return _small(Fraction(base**power))
    raise ValueError("only numbers, + - * / // % ** and parentheses are allowed")


def _small(value: Fraction) -> Fraction:
    if max(abs(value.numerator), value.denominator) >= 10**_MAX_DIGITS:
        raise ValueError(f"a number has more than {_MAX_DIGITS} digits")
    return value
