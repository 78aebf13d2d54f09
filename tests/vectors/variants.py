"""Wrong implementations, and the vector that each of them fails.

    python -m tests.vectors.variants [ID ...]

Each is one mistake in this implementation (``variants.toml``), made in memory: the functions that it changes
get other code, and nothing but the vectors is run. Exit status 1 if one passes them all.
"""

from __future__ import annotations

import functools
import importlib
import json
import sys
import tomllib
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, Final

from secfed.errors import SecfedError
from tests.vectors import bad, generate, generate_v11, replay
from tests.vectors.ciphers import aes_vectors

ROOT: Final = Path(__file__).resolve().parents[2]
_V1: Final = (
    "bad_messages",
    "bad_arithmetic",
    "bad_keys",
    "bad_model",
    "bad_site",
    "bad_closed",
    "bad_keystream_aes",
)


@dataclass(frozen=True)
class Variant:
    """One mistake: text that occurs once in a file, and what stands there instead.

    ``first`` is the file of v1.1 that is played before the others.
    """

    id: str
    file: str
    old: str
    new: str
    why: str
    first: str = ""

    def source(self) -> str:
        """The file as it is."""
        return (ROOT / self.file).read_text(encoding="utf-8")

    def mistaken(self) -> str:
        """The file with the mistake."""
        source = self.source()
        if source.count(self.old) != 1:
            raise ValueError(f"{self.id}: its old text occurs {source.count(self.old)} times in {self.file}")
        return source.replace(self.old, self.new)

    @property
    def module(self) -> str:
        """What the file imports as."""
        parts = Path(self.file).with_suffix("").parts
        return ".".join(parts if parts[0] == "secfed" else ("secfed", *parts))


def catalogue() -> list[Variant]:
    """All of them."""
    content = tomllib.loads((Path(__file__).parent / "variants.toml").read_text(encoding="utf-8"))
    return [Variant(**one) for one in content["variant"]]


@contextmanager
def made(variant: Variant) -> Iterator[None]:
    """With the mistake, inside the block."""
    module = importlib.import_module(variant.module)
    right, wrong = (
        _functions(compile(text, variant.file, "exec")) for text in (variant.source(), variant.mistaken())
    )
    changed = [name for name, code in wrong.items() if name not in right or _differs(code, right[name])]
    found = {name: _function(module, name) for name in changed}
    before = {name: function.__code__ for name, function in found.items()}
    if not found:
        raise ValueError(f"{variant.id}: it changes no function")
    try:
        for name, function in found.items():
            function.__code__ = wrong[name]
        _forget(module)
        yield
    finally:
        for name, function in found.items():
            function.__code__ = before[name]
        _forget(module)


def _forget(module: Any) -> None:
    """Drop what functions of a module have kept of earlier calls."""
    for one in vars(module).values():
        clear = getattr(one, "cache_clear", None)
        if clear is not None:
            clear()


def _functions(code: CodeType) -> dict[str, CodeType]:
    """Qualified name -> code of every function and method, not of functions inside them."""
    inner = [one for one in code.co_consts if isinstance(one, CodeType)]
    found = {
        one.co_qualname: one for one in inner if one.co_flags & 0x2 and one.co_name != "<lambda>"
    }  # CO_NEWLOCALS
    for one in inner:
        if one.co_qualname not in found or "__qualname__" in one.co_names:
            found.pop(one.co_qualname, None)
            found |= _functions(one)
    return found


def _differs(one: CodeType, other: CodeType) -> bool:
    """Whether code differs but for where it stands."""
    plain = [
        (
            code.co_code,
            code.co_names,
            code.co_varnames,
            [c for c in code.co_consts if not isinstance(c, CodeType)],
        )
        for code in (one, other)
    ]
    inner = [[c for c in code.co_consts if isinstance(c, CodeType)] for code in (one, other)]
    nested = len(inner[0]) != len(inner[1]) or any(map(_differs, *inner))
    return bool(plain[0] != plain[1]) or nested


def _function(module: Any, name: str) -> FunctionType:
    """A function or method of a module by its qualified name, out of whatever wraps it."""
    holder, *rest = name.split(".")
    found: Any = vars(module)[holder]
    for part in rest:
        found = vars(found)[part]
    for attribute in ("fget", "func", "__func__", "__wrapped__"):
        found = getattr(found, attribute, None) or found
    if not isinstance(found, FunctionType):
        raise TypeError(f"{name} of {module.__name__} is no function")
    return found


@functools.cache
def _v1(name: str) -> Any:
    return json.loads((generate.FOLDER / f"{name}.json").read_text(encoding="utf-8"))


def _vectors(first: str) -> Iterator[tuple[str, Any]]:
    """Name and check of every vector: those of one file, then of v1.1, then of v1."""
    for file, case in sorted(generate_v11.cases(), key=lambda one: one[0] != first):
        yield case["name"], functools.partial(generate_v11.play, file, case)
    for name in _V1:
        for case in _v1(name)["cases"]:
            yield case["name"], functools.partial(bad.check, case, _v1("attempt"))
    yield "v1 masks under AES-256", _masks_under_aes
    for site in _v1("attempt")["survivors"]:
        yield f"v1 attempt of {site}", functools.partial(replay.rebuild, _v1("attempt"), site)


def _masks_under_aes() -> None:
    if aes_vectors() != _v1("keystream_aes"):
        raise ValueError("other masks than those of the vectors")


def killer(variant: Variant) -> str:
    """The first vector that the mistake fails; empty if it passes them all."""
    with made(variant), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # wrong arithmetic may warn; what counts is what it comes to
        for name, check in _vectors(variant.first):
            try:
                check()
            except (
                AssertionError,
                SecfedError,
                ArithmeticError,
                LookupError,
                TypeError,
                ValueError,
                AttributeError,
            ):
                return name
    return ""


def main(arguments: list[str]) -> int:
    """Print the table."""
    chosen = [variant for variant in catalogue() if not arguments or variant.id in arguments]
    survivors = 0
    for variant in chosen:
        fails = killer(variant)
        survivors += not fails
        print(f"{variant.id:52} {fails or 'PASSES EVERY VECTOR'}", flush=True)
    print(f"{len(chosen)} wrong implementations, {survivors} of which pass every vector")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
