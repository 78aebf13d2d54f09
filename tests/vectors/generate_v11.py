"""Makes v1.1, and plays it: ``generate.py`` writes and compares both versions."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any, Final

from tests.vectors.function_cases import function_content
from tests.vectors.functions import play_function
from tests.vectors.primitives import Json
from tests.vectors.scripts.book import SealedOnce, file_text
from tests.vectors.scripts.closed_scripts import closed_content
from tests.vectors.scripts.frame_play import play_frames
from tests.vectors.scripts.frame_scripts import frame_content
from tests.vectors.scripts.play import play_server, play_site
from tests.vectors.scripts.server_scripts import server_content
from tests.vectors.scripts.site_builder import Scripts
from tests.vectors.scripts.site_scripts import site_scripts
from tests.vectors.scripts.sparse_server_scripts import sparse_server_content
from tests.vectors.scripts.sparse_site_scripts import sparse_site_content
from tests.vectors.scripts.world import ME, THRESHOLD, Honest, World

FOLDER: Final = Path(__file__).resolve().parent / "v1.1"
_PLAYERS: Final[dict[str, Any]] = {
    "functions.json": lambda case, _: play_function(case),
    "site_scripts.json": play_site,
    "server_scripts.json": play_server,
    "sparse_site_scripts.json": play_site,
    "sparse_server_scripts.json": play_server,
    "frame_scripts.json": play_frames,
    "closed_scripts.json": play_frames,
}


def generate(folder: Path = FOLDER) -> dict[str, str]:
    """File name -> text. Sealed envelopes are taken from ``folder`` where they still fit."""
    world = World(SealedOnce.read(folder))
    honest = Honest(world, world.specification()).run()
    second = world.entropy(ME, "second")
    for purpose in ("mask secret", "self-mask seed"):
        second.token(purpose)
    for _ in range(2 * (THRESHOLD - 1)):
        second.below(2**256 + 297)
    scripts = Scripts(world, honest)
    files: dict[str, Json] = {
        "functions.json": function_content(world),
        "site_scripts.json": site_scripts(scripts),
        "server_scripts.json": server_content(world, honest),
        "sparse_site_scripts.json": sparse_site_content(world.envelopes),
        "sparse_server_scripts.json": sparse_server_content(world),
        "frame_scripts.json": frame_content(world, scripts),
        "closed_scripts.json": closed_content(world, scripts),
    }
    return {name: file_text(content) + "\n" for name, content in files.items()}


@cache
def load(name: str, folder: Path = FOLDER) -> Json:
    """One file."""
    content: Json = json.loads((folder / name).read_text(encoding="utf-8"))
    return content


def cases() -> list[tuple[str, Json]]:
    """File and case, of every file."""
    return [(name, case) for name in _PLAYERS for case in load(name).get("cases") or load(name)["scripts"]]


def play(file: str, case: Json) -> None:
    """Run one case; AssertionError, or another error, if this implementation is wrong."""
    _PLAYERS[file](case, load(file))
