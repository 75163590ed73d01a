"""Runs the examples of a guide as a program of its own.

It reads a JSON list of pieces of Python, and executes one after the other in the same names. What a piece ends with, if
it is an expression, is `_` for those after it.
"""

from __future__ import annotations

import ast
import json
import sys
from typing import Any


def main() -> None:
    names: dict[str, Any] = {"__name__": "guide"}
    for number, piece in enumerate(json.load(sys.stdin)):
        execute(ast.parse(piece), names, f"piece {number}")
        print(f"piece {number} is done", flush=True)
    if "spark" in names:
        names["spark"].stop()


def execute(module: ast.Module, names: dict[str, Any], name: str) -> None:
    last = module.body[-1] if module.body else None
    if isinstance(last, ast.Expr):
        exec(compile(ast.Module(module.body[:-1], []), name, "exec"), names)
        names["_"] = eval(compile(ast.Expression(last.value), name, "eval"), names)
    else:
        exec(compile(module, name, "exec"), names)


if __name__ == "__main__":
    main()
