"""Every English text that the report and the console look up in a catalogue, found in their sources."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

from secfed.config.protections import TRAITS

ROOT: Final = Path(__file__).parents[3]
SOURCES: Final = (
    *sorted((ROOT / "secfed/audit").rglob("*.py")),
    *sorted((ROOT / "secfed/console").glob("*.py")),
)
TEMPLATES: Final = (
    ROOT / "secfed/audit/render/report.html.j2",
    *sorted((ROOT / "secfed/console").rglob("*.j2")),
)
# Where a text is an argument, by the name of what is called.
_LOOKED_UP: Final = {"say": 0, "said": 0, "Column": 0, "problem": 2}
_IN_TEMPLATE: Final = re.compile(r'\bsay\("((?:[^"\\]|\\.)*)"')
# Looked up by a value, not by a constant: kinds of files, what a budget protects, what is checked.
_VALUES: Final = ("roster", "transcript", "ledger", "decision log", "model", "record", "site")
_CHECKED: Final = ("keys", "certificate", "CA", "policy", "memory", "payments")
_PLURALS_IN_TEMPLATE: Final = re.compile(r'\bplural\([^"]*?, "([^"]+)"\)')

_NAME: Final = re.compile("[a-z_]*")

Message = tuple[str, ...]  # one form, or singular and plural


@cache
def messages() -> set[Message]:
    """All of them."""
    found: set[Message] = set()
    for path in SOURCES:
        found |= set(_in_python(ast.parse(path.read_text("utf-8"))))
    for path in TEMPLATES:
        text = path.read_text("utf-8")
        found |= {(one,) for one in _IN_TEMPLATE.findall(text)}
        found |= {_counted(noun) for noun in _PLURALS_IN_TEMPLATE.findall(text)}
    texts = tomllib.loads((ROOT / "secfed/audit/privacy/texts.toml").read_text("utf-8"))
    found |= {(one,) for one in _in_table(texts)}
    found |= {(text,) for traits in TRAITS.values() for text in (traits.summary, traits.relies_on)}
    return {one for one in found | {(one,) for one in (*_VALUES, *_CHECKED)} if one[0]}


def _counted(noun: str) -> Message:
    return f"{{count:,}} {noun}", f"{{count:,}} {noun}s"


def _in_table(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        if not _NAME.fullmatch(value):  # of an entry; not to be read
            yield value
    else:
        if isinstance(value, dict):
            yield from (key for key in value if " " in key)
        for one in value.values() if isinstance(value, dict) else value:
            yield from _in_table(one)


def _in_python(tree: ast.Module) -> Iterator[Message]:
    """Texts that are arguments: constants, a choice of two, or the name of a variable or table."""
    named: dict[str, list[str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Name):
                    named.setdefault(target.id, []).extend(_constants(node.value))
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        arguments = node.args
        if name == "say_many" and isinstance(arguments[0], ast.Constant):
            yield tuple(_constants(arguments[0]) + _constants(arguments[1]))
        elif name == "plural":
            yield from (_counted(noun) for noun in _constants(arguments[1]))
        elif name in _LOOKED_UP and len(arguments) > _LOOKED_UP[name]:
            chosen = arguments[_LOOKED_UP[name]]
            for one in ast.walk(chosen):
                if isinstance(one, ast.Name):
                    yield from ((text,) for text in named.get(one.id, ()))
            yield from ((text,) for text in _constants(chosen))


def _constants(node: ast.expr) -> list[str]:
    if isinstance(node, ast.Constant):
        return [node.value] if isinstance(node.value, str) else []
    if isinstance(node, ast.IfExp):
        return _constants(node.body) + _constants(node.orelse)
    if isinstance(node, ast.BoolOp):
        return [text for one in node.values for text in _constants(one)]
    if isinstance(node, ast.Dict):
        return [text for one in node.values for text in _constants(one)]
    if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "get":  # with a default
        return [text for one in node.args[1:] for text in _constants(one)]
    if isinstance(node, ast.Tuple | ast.List):
        return [text for one in node.elts for text in _constants(one)]
    return []
