"""A study that begins with a model from a file (``[model] start``): which one, and whether it is that one.

The digest that a study names is the SHA-256 of the parameters as this software writes them: of a finished
study's ``model.safetensors``, that of the file. A hospital compares the first broadcast with it and needs no
file. Under encrypted protection nothing is broadcast: every hospital has the model at home, and it is found
by its digest, never by a path that a study names. See docs/adr/014-warm-start.md.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import torch
from safetensors import SafetensorError, safe_open

from secfed.algorithms.framework.base import Algorithm, ServerProgram
from secfed.algorithms.framework.links import LinkedServer
from secfed.crypto.refusals import Refusal
from secfed.errors import ConfigError
from secfed.runs.run_folder import MODEL_FILE
from secfed.study.study import Study
from secfed.wire.frames import encode_state
from secfed.wire.layout import State

MODELS_FOLDER: Final = "models"  # of a site's state: models that an administrator puts there
_KEY: Final = "model.start"
_FLOAT32: Final = "F32"
_MOST_NAMED: Final = 3
_MOST_HEADER_BYTES: Final = 100_000_000  # of a safetensors file, as its format has it


def digest_of(model: State) -> bytes:
    """SHA-256 of a model file with these parameters."""
    return hashlib.sha256(encode_state(model)).digest()


def check_initial_model(digest: bytes, model: State) -> None:
    """Compare a broadcast model with the one that the study names; refusal 42 if it is another."""
    if digest_of(model) != digest:
        raise Refusal.OTHER_START.refuse()


def initial_server(algorithm: Algorithm, start: State | None) -> ServerProgram:
    """A fresh server program whose broadcasts are linked, with the study's start if it has one."""
    server = LinkedServer(algorithm, algorithm.server())
    if start is not None:
        server.begin(start)
    return server


def pinned_model(study: Study) -> bytes | None:
    """Digest of the model that a study begins with; None if the seed decides."""
    if study.model.start is None:
        return None
    if study.model.start_sha256 is None:
        raise ConfigError(
            "model.start_sha256: is missing",
            remedy="add it to [model]: the SHA-256 of the model.safetensors, which sha256sum and the "
            "transcripts of the study that made it say",
        )
    return bytes.fromhex(study.model.start_sha256)


def load_initial_model(study: Study, algorithm: Algorithm) -> State | None:
    """The model that a study of one's own begins with; None if the seed decides.

    ConfigError: no such file, not a model of this study, or another one than the digest names.
    """
    if study.model.start is None:
        return None
    path = study.folder / study.model.start
    model = read_model(path, algorithm.server().model())
    found = digest_of(model).hex()
    if study.model.start_sha256 is None:
        raise ConfigError(
            "model.start_sha256: is missing",
            remedy=f'add start_sha256 = "{found}" to [model], if {path} is the model that you mean',
        )
    if study.model.start_sha256 != found:
        raise ConfigError(
            f"{_KEY}: {path} is not the model that model.start_sha256 names; its digest is {found}",
            remedy="put the right file there, or write the digest of the model that you mean",
        )
    return model


def find_initial_model(study: Study, algorithm: Algorithm, state: Path) -> State | None:
    """The model that a study from elsewhere begins with, which must be among those that a hospital has."""
    wanted = pinned_model(study)
    if wanted is None:
        return None
    like = algorithm.server().model()
    for path in (*state.glob(f"{MODELS_FOLDER}/*.safetensors"), *state.glob(f"studies/*/{MODEL_FILE}")):
        try:
            model = read_model(path, like)
        except ConfigError:
            continue  # of another study, with other shapes
        if digest_of(model) == wanted:
            return model
    raise ConfigError(
        f"{_KEY}: this site has no model with the digest {wanted.hex()}",
        remedy=f"put it into the folder {MODELS_FOLDER} of the site's state folder, as NAME.safetensors",
    )


def read_model(path: Path, like: State) -> dict[str, torch.Tensor]:
    """The parameters in a file, which must be exactly those of a model.

    Its size, and then names, shapes and types, are compared before any parameter is read.
    Nothing but a safetensors file is ever opened as a model.
    """
    if not path.is_file():
        raise ConfigError(
            f"{_KEY}: {path}: there is no such file", remedy="the path is relative to the study file"
        )
    size, own = path.stat().st_size, sum(4 * value.numel() for value in like.values())
    if size > own + _MOST_HEADER_BYTES:  # before it is mapped into memory
        raise ConfigError(
            f"{_KEY}: {path}: has {size:,} bytes, and this study's model {own:,}",
            remedy="name a file with the parameters of this study's [model], and nothing else",
        )
    try:
        with safe_open(path, framework="pt") as file:
            names = set(file.keys())
            slices = {name: file.get_slice(name) for name in names & set(like)}
            wrong = _names(names, set(like)) or _shapes(
                {name: (tuple(one.get_shape()), one.get_dtype()) for name, one in slices.items()}, like
            )
            if wrong:
                raise ConfigError(
                    f"{_KEY}: {path}: {wrong}",
                    remedy="the file must hold the parameters of this study's [model], all and only them, "
                    "under the names that PyTorch gives them, as float32",
                )
            model = {name: file.get_tensor(name).clone() for name in sorted(names)}  # not the file's memory
    except SafetensorError:
        raise ConfigError(
            f"{_KEY}: {path}: is not a whole safetensors file",
            remedy="copy it again, or write it with safetensors.torch.save_file; PyTorch's own files are not "
            "read, because they can hold code",
        ) from None
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        raise ConfigError(f"{_KEY}: {path}: {reason}", remedy="check its mode") from None
    for name, value in model.items():
        if not bool(torch.isfinite(value).all()):
            raise ConfigError(
                f"{_KEY}: {path}: {name!r} contains NaN or Inf", remedy="use a model whose training went well"
            )
    return model


def _names(found: set[str], wanted: set[str]) -> str:
    """What is missing and what is too much, in words; nothing if nothing is."""
    parts = [
        f"{what} {', '.join(sorted(names)[:_MOST_NAMED])}"
        + (f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else "")
        for what, names in (("lacks", wanted - found), ("has besides", found - wanted))
        if names
    ]
    return "; it ".join(parts)


def _shapes(found: Mapping[str, tuple[tuple[int, ...], str]], like: State) -> str:
    """The first parameter of another shape or type, in words; nothing if there is none."""
    for name, (shape, kind) in sorted(found.items()):
        if shape != tuple(like[name].shape):
            return f"{name!r} has the shape {shape}, not {tuple(like[name].shape)}"
        if kind != _FLOAT32:
            return f"{name!r} is of type {kind}, not {_FLOAT32}"
    return ""
