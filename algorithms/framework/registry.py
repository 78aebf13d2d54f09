"""Registration of built-in algorithms: one decorator in the algorithm's own file, which is found by itself.

    @register("fedprox", options=FedProxOptions)
    class FedProx(FedAvg): ...

Code from outside this package is not registered but named, as ``package.module:Class``: a hospital's policy
lists the names whose import it permits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pkgutil import iter_modules
from types import MappingProxyType
from typing import Any, Final, TypeVar

from secfed.config.schema import Options
from secfed.errors import ConfigError

_PACKAGE: Final = "secfed.algorithms"
_SHARED: Final = ("data", "framework", "losses", "metrics", "models")  # what algorithms are made of


@dataclass(frozen=True)
class RegistryEntry:
    """One built-in: the model of its table in the study file, and what makes it."""

    options: type[Options]
    build: Callable[..., Any]


_Class = TypeVar("_Class", bound=type)
_registered: dict[str, RegistryEntry] = {}


def register(name: str, *, options: type[Options]) -> Callable[[_Class], _Class]:
    """Let studies name this algorithm; it is made with (setting, options).

    Raises:
        ConfigError: another algorithm has this name.
    """

    def add(algorithm: _Class) -> _Class:
        known = _registered.get(name)
        if known is not None and known.build.__qualname__ != algorithm.__qualname__:
            raise ConfigError(f"two algorithms have the name {name!r}", remedy="rename one of them")
        _registered[name] = RegistryEntry(options, algorithm)
        return algorithm

    return add


def find_algorithms() -> Mapping[str, RegistryEntry]:
    """All registered algorithms by name, after a look into every family's modules."""
    for family in iter_modules(import_module(_PACKAGE).__path__):
        if family.ispkg and family.name not in _SHARED:
            package = import_module(f"{_PACKAGE}.{family.name}")
            for module in iter_modules(package.__path__):
                import_module(f"{package.__name__}.{module.name}")
    return MappingProxyType(dict(sorted(_registered.items())))
