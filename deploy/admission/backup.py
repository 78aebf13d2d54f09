"""A hospital's folder in one file, without what must never come back; and what of it may come back.

Never in it: the journal, the folder ``work`` of a study, seeds and sealed attempts (an older copy would
repeat masks that were used), locks, logs. Private keys only if asked for.

Restoring replaces nothing: what is there is newer, and stays. What was missing, or does not go on from the
backup, was forgotten, and so was what came after the backup: the site has lost its memory
(:mod:`secfed.site.lost_memory`). A ledger never takes its place again: it is put aside, and the data set is
refused until its ledger is back, or it goes on under another name. Nor does an approval: it may have been
withdrawn since. Studies of the backup that were forgotten, ended or not, are refused: without the journal,
they could be answered twice.

Security: nothing is signed. Whoever can change a backup decides what policy comes back with it.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
import tomllib
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import Final

from secfed.deploy.admission.approvals import Approvals
from secfed.deploy.admission.approvals_table import ApprovalState
from secfed.deploy.admission.memory import ID_FILE, JOURNAL, belong_together, is_other, lose
from secfed.deploy.enrolment.site_folder import STUDY_ID, SiteFolder
from secfed.deploy.enrolment.site_settings import load_settings
from secfed.errors import ConfigError
from secfed.site.lost_memory import copies, keep_copy
from secfed.storage import private_files

_MANIFEST: Final = "secfed-backup.json"
_KEYS: Final = ("identity.key", "tls.key")
# Relative to the site's folder, then to its state folder.
_SETTINGS: Final = ("site.toml", "policy.toml", "*.json", "*.pem", "pinned-rosters/*.json")
_RECORDS: Final = (
    "decisions.jsonl",
    "studies/*/transcript.jsonl",
    "studies/*/settings.json",
    "studies/*/model.safetensors",
)
_LEDGERS: Final = ("ledger-*.jsonl", "from-backup/ledger-*.jsonl", "from-backup/*/ledger-*.jsonl")
_MARK: Final = "from-backup/lost.json"  # counts where it is missing, and is written anew
_STATE: Final = (*_RECORDS, *_LEDGERS, _MARK)
_NO_MEMORY: Final = ("*.pem", "*.key", "request.json", "consortium.json", "*.safetensors")
_TOML, _APPROVALS, _REQUEST = "site/site.toml", "site/approvals.json", "site/request.json"
_MOST_TIMES: Final = 50  # larger than the file itself; records of text are ten times as large
_MOST_MORE_BYTES: Final = 1 << 25


@dataclass
class Restored:
    """What came of a backup's files."""

    written: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)  # there already, and left as they were
    aside: list[str] = field(default_factory=list)  # ledgers that may be old
    unknown: list[str] = field(default_factory=list)  # data sets of whose payments nothing is known
    refused: list[str] = field(default_factory=list)  # studies that were forgotten


def back_up(site: SiteFolder, out: Path, now: datetime, *, keys: bool) -> list[str]:
    """Write a new file that only its owner can read; the names of what is in it."""
    patterns = (*_SETTINGS, *(_KEYS if keys else ()))
    # Without the id of the state folder: put back with an old folder, it would call it the newest.
    found = {f"site/{name}": path for name, path in _matching(site.folder, patterns) if name != ID_FILE}
    found |= {f"state/{name}": path for name, path in _matching(site.state, _STATE)}
    contents = {name: _whole(path) for name, path in found.items()}
    manifest = {
        "version": 1,
        "site": site.name,
        "made_s": int(now.timestamp()),
        "files": {name: hashlib.sha256(data).hexdigest() for name, data in contents.items()},
    }
    out_bytes = io.BytesIO()
    with tarfile.open(fileobj=out_bytes, mode="w:gz") as tar:
        for name, data in {_MANIFEST: private_files.to_json(manifest), **contents}.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode, member.mtime = len(data), 0o600, int(now.timestamp())
            tar.addfile(member, io.BytesIO(data))
    private_files.create(out, out_bytes.getvalue())
    return list(contents)


def restore(backup: Path, folder: Path, now: datetime) -> Restored:
    """Put back what is missing in a site's folder, which may be gone altogether.

    The agent must not be running (:func:`secfed.deploy.agent.control.only_agent`).

    Raises:
        ConfigError: not a backup, or damaged; of another site; or the folder is there and is no site's.
    """
    owner, contents = _read(backup)
    begun = _begun(backup, contents)
    if _APPROVALS in contents:
        contents[_APPROVALS] = _without_approvals(contents[_APPROVALS], backup)
    if folder.exists() and any(folder.iterdir()):
        if (there := SiteFolder(folder).name) != owner:
            message = f"{backup}: is of {owner}, and {folder} of {there}"
            raise ConfigError(message, remedy="use its own backup")
    else:
        _check_new(backup, contents)
        private_files.make_private_folder(folder)
    done = Restored()
    forgotten = {name for name in (_TOML, _APPROVALS) if _put(folder, folder, name, contents, done)}
    state = folder / load_settings(folder / "site.toml").agent.state
    state.mkdir(mode=0o700, parents=True, exist_ok=True)
    forgotten |= {name for name, data in contents.items() if _is_forgotten(_place(folder, state, name), data)}
    no_journal = not (state / JOURNAL).exists()
    lost = no_journal or is_other(folder, state) or any(not _is_any(name, _NO_MEMORY) for name in forgotten)
    if lost:  # first: if this is cut off, nothing that came back is believed
        refused = {study for name, study in begun.items() if no_journal or {name, _beside(name)} & forgotten}
        lose(Approvals(folder / "approvals.json"), state, refused, now)
        done.refused = sorted(study[:-65] for study in refused)
    for name, data in contents.items():
        ledger = state / Path(name).name
        if not _is_ledger(name):
            if name not in (_TOML, _APPROVALS, _REQUEST, f"state/{_MARK}"):
                _put(folder, state, name, contents, done)
        elif _is_forgotten(ledger, data):
            done.aside.append(str(keep_copy(state, ledger.name, data)))
        else:
            if lost:  # it shows that the ledger that is here is no other one
                keep_copy(state, ledger.name, data)
            if ledger.read_bytes() != data:
                done.kept.append(name)
    if lost:
        done.unknown = _unknown(folder / "policy.toml", state)
    belong_together(folder, state, anew=lost)
    _put(folder, state, _REQUEST, contents, done)  # last: without it, no agent works here
    return done


def _matching(folder: Path, patterns: Sequence[str]) -> Iterator[tuple[str, Path]]:
    for pattern in patterns:
        for path in sorted(folder.glob(pattern)):
            if path.is_file() and not path.is_symlink():
                yield path.relative_to(folder).as_posix(), path


def _whole(path: Path) -> bytes:
    """The file; of a record that is being written, up to the last whole line."""
    data = path.read_bytes()
    return data[: data.rfind(b"\n") + 1] if path.suffix == ".jsonl" else data


def _read(backup: Path) -> tuple[str, dict[str, bytes]]:
    """Whose it is, and files: each has the digest that the manifest gives it, and a name that is expected."""
    read: dict[str, bytes] = {}
    try:
        most = _MOST_TIMES * backup.stat().st_size + _MOST_MORE_BYTES
        with (
            gzip.open(backup, "rb") as packed,
            tarfile.open(fileobj=_Limited(packed, most), mode="r|") as tar,  # type: ignore[call-overload]
        ):
            for member in tar:
                if member.isdir():
                    continue
                if member.name in read or not (member.name == _MANIFEST or _is_expected(member.name)):
                    raise ValueError
                stream = tar.extractfile(member)
                read[member.name] = b"" if stream is None else stream.read()
        manifest = json.loads(read.pop(_MANIFEST))
        private_files.check_depth(manifest)
        good = manifest["version"] == 1 and set(read) == set(manifest["files"])
        if not good or any(
            hashlib.sha256(data).hexdigest() != manifest["files"][name] for name, data in read.items()
        ):
            raise ValueError
        return str(manifest["site"]), read
    except (
        OSError,
        tarfile.TarError,
        zlib.error,
        EOFError,
        ValueError,
        KeyError,
        TypeError,
        RecursionError,
    ):
        raise ConfigError(f"{backup}: not a whole backup of a site", remedy="use another one") from None


class _Limited:
    """What a packed file unpacks to, up to a limit: a small one can hold gigabytes of zeros."""

    def __init__(self, stream: gzip.GzipFile, most: int) -> None:
        self._stream, self._left = stream, most

    def read(self, size: int) -> bytes:
        data = self._stream.read(size)
        self._left -= len(data)
        if self._left < 0:
            raise ValueError
        return data


def _is_expected(name: str) -> bool:
    top, _, rest = name.partition("/")
    patterns = {"site": (*_SETTINGS, *_KEYS), "state": _STATE}.get(top, ())
    parts = rest.split("/")
    return ".." not in parts and any(
        len(parts) == pattern.count("/") + 1 and Path(rest).match(pattern) for pattern in patterns
    )


def _begun(backup: Path, contents: Mapping[str, bytes]) -> dict[str, str]:
    """The studies that had begun, by the names of their files."""
    begun = {}
    for name, data in contents.items():
        if Path(name).name == "settings.json":
            try:
                begun[name] = str(json.loads(data)["study"])
            except (ValueError, KeyError, TypeError, RecursionError):
                begun[name] = ""
            if not STUDY_ID.fullmatch(begun[name]):
                raise ConfigError(f"{backup}: {name} does not name a study", remedy="use another backup")
    return begun


def _check_new(backup: Path, contents: Mapping[str, bytes]) -> None:
    """Refuse a backup that does not make a folder, or whose state folder would lie outside of it."""
    try:
        tables = tomllib.loads(contents[_TOML].decode())
        state = PurePosixPath(tables.get("agent", {}).get("state", "state"))
        if _REQUEST not in contents:
            raise ValueError
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ConfigError(f"{backup}: not a whole backup of a site", remedy="use another one") from None
    if state.is_absolute() or ".." in state.parts:
        raise ConfigError(
            f"{backup}: its site.toml names the state folder {str(state)!r}, outside of the site's folder",
            remedy="if that is right, put its site.toml and request.json into the new folder by hand "
            "(mode 700), and restore again",
        )


def _place(folder: Path, state: Path, name: str) -> Path:
    top, _, rest = name.partition("/")
    return (state if top == "state" else folder) / rest


def _beside(name: str) -> str:
    """The transcript of the study whose settings these are."""
    return str(PurePosixPath(name).with_name("transcript.jsonl"))


def _is_forgotten(path: Path, data: bytes) -> bool:
    """Whether what a backup has is not there any more; records only grow."""
    if not path.exists():
        return True
    return path.suffix == ".jsonl" and not path.read_bytes().startswith(data)


def _put(folder: Path, state: Path, name: str, contents: Mapping[str, bytes], done: Restored) -> bool:
    """Write a file if it is missing; whether it was written."""
    if name not in contents:
        return False
    path, data = _place(folder, state, name), contents[name]
    if path.exists():
        if path.read_bytes() != data:
            done.kept.append(name)
        return False
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    private_files.create(path, data)
    done.written.append(name)
    return True


def _is_any(name: str, patterns: Sequence[str]) -> bool:
    return any(Path(name).match(pattern) for pattern in patterns)


def _is_ledger(name: str) -> bool:
    return name.startswith("state/") and Path(name).match("ledger-*.jsonl")


def _unknown(policy: Path, state: Path) -> list[str]:
    """Data sets of the policy of which no copy of a ledger is there."""
    try:
        tables = tomllib.loads(policy.read_text(encoding="utf-8")).get("data", [])
        names = [str(table["name"]) for table in tables]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []  # an agent does not work with it either
    return [name for name in names if not any(copies(state, name))]


def _without_approvals(data: bytes, backup: Path) -> bytes:
    """Refusals come back; what was approved waits for a person again."""
    try:
        content = json.loads(data)
        studies = content["studies"].items()
        approved = (ApprovalState.APPROVED, ApprovalState.HELD)  # by one person, or the first of two
        kept = {digest: entry for digest, entry in studies if entry["state"] not in approved}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        remedy = "use another backup, or take approvals.json out of this one"
        raise ConfigError(f"{backup}: its approvals.json cannot be read", remedy=remedy) from None
    return private_files.to_json({**content, "studies": kept})
