"""A hospital's folder in one file, without what must never come back; and what of it may come back.

Never in it: the journal, the folder ``work`` of a study, seeds and sealed attempts (an older copy would
repeat masks that were used), locks, logs. Private keys only if asked for.

Restoring replaces nothing: what is there is newer, and stays. A ledger never takes its place again: a payment
that came after the copy would be forgotten, and nothing here can show that there was none. It is put aside,
and the data set is refused until its ledger is back, or it goes on under another name
(:func:`secfed.site.runtime.recorded_heads`). Nor does an approval: it may have been withdrawn since.
Security: without the journal, a study that was under way could be answered twice: it is refused from now on.
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from secfed.deploy.admission.approvals import Approvals, ApprovalState
from secfed.deploy.enrolment.site_folder import SiteFolder
from secfed.errors import ConfigError
from secfed.runs.run_folder import FROM_BACKUP, NO_LEDGER, ledger_file
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
_LEDGERS: Final = "ledger-*.jsonl"
_APPROVALS: Final = "site/approvals.json"


@dataclass
class Restored:
    """What came of a backup's files."""

    written: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)  # there already, and left as they were
    aside: list[str] = field(default_factory=list)  # ledgers that may be old
    unknown: list[str] = field(default_factory=list)  # data sets of whose payments nothing is known
    refused: list[str] = field(default_factory=list)  # studies that were under way


def back_up(site: SiteFolder, out: Path, now: datetime, *, keys: bool) -> list[str]:
    """Write a new file that only its owner can read; the names of what is in it."""
    patterns = (*_SETTINGS, *(_KEYS if keys else ()))
    found = {f"site/{name}": path for name, path in _matching(site.folder, patterns)}
    found |= {f"state/{name}": path for name, path in _matching(site.state, (*_RECORDS, _LEDGERS))}
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
    manifest, contents = _read(backup)
    if folder.exists() and any(folder.iterdir()):
        if (there := SiteFolder(folder).name) != manifest["site"]:
            message = f"{backup}: is of {manifest['site']}, and {folder} of {there}"
            raise ConfigError(message, remedy="use its own backup")
    else:
        private_files.make_private_folder(folder)
    done = Restored()
    for name, data in contents.items():
        if name.startswith("site/"):
            kept = _without_approvals(data, backup) if name == _APPROVALS else data
            _put(folder / name.removeprefix("site/"), kept, name, done)
    site = SiteFolder(folder)
    state = site.state
    for name, data in contents.items():
        if name.startswith("state/"):
            path = state / name.removeprefix("state/")
            goes_on = path.exists() and path.read_bytes().startswith(data)
            if not _is_ledger(name) or goes_on:
                _put(path, data, name, done)
            else:
                done.aside.append(_put_aside(state, path.name, data))
    lost = not (state / "journal.sqlite").exists()
    if lost:
        done.unknown = _mark_unknown(site)
    done.refused = _refuse_unfinished(site, contents, now, None if lost else done.written)
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


def _read(backup: Path) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Manifest and files: each has the digest that the manifest gives it, and a name that is expected."""
    try:
        with tarfile.open(backup, "r:gz") as tar:
            members = {member.name: member for member in tar.getmembers() if member.isfile()}
            read = {name: _content(tar, member) for name, member in members.items()}
        manifest = json.loads(read.pop(_MANIFEST))
        good = manifest["version"] == 1 and all(
            hashlib.sha256(data).hexdigest() == manifest["files"][name] and _is_expected(name)
            for name, data in read.items()
        )
        if not good or set(read) != set(manifest["files"]):
            raise ValueError
    except (OSError, tarfile.TarError, EOFError, ValueError, KeyError, TypeError):
        raise ConfigError(f"{backup}: not a whole backup of a site", remedy="use another one") from None
    return manifest, read


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    stream = tar.extractfile(member)
    return b"" if stream is None else stream.read()


def _is_expected(name: str) -> bool:
    top, _, rest = name.partition("/")
    patterns = {"site": (*_SETTINGS, *_KEYS), "state": (*_RECORDS, _LEDGERS)}.get(top, ())
    parts = rest.split("/")
    return ".." not in parts and any(
        len(parts) == pattern.count("/") + 1 and Path(rest).match(pattern) for pattern in patterns
    )


def _put(path: Path, data: bytes, name: str, done: Restored) -> None:
    if path.exists():
        if path.read_bytes() != data:
            done.kept.append(name)
        return
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    private_files.create(path, data)
    done.written.append(name)


def _is_ledger(name: str) -> bool:
    return Path(name).match(_LEDGERS)


def _put_aside(state: Path, name: str, data: bytes) -> str:
    """Keep a ledger as a witness; of several copies the one that knows most."""
    path = state / FROM_BACKUP / name
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not path.exists() or data.startswith(path.read_bytes()):
        private_files.replace(path, data)
    return str(path)


def _mark_unknown(site: SiteFolder) -> list[str]:
    """Data sets of the policy without any ledger: they may have been paid for after the backup."""
    try:
        tables = tomllib.loads(site.policy_path.read_text(encoding="utf-8")).get("data", [])
        names = [str(table["name"]) for table in tables]
    except (OSError, ValueError, KeyError, TypeError):
        remedy = "repair it, then restore again: its data sets may have been paid for"
        raise ConfigError(f"{site.policy_path}: cannot be read", remedy=remedy) from None
    unknown = []
    for name in names:
        path = ledger_file(site.state, name)
        if not path.exists() and not (site.state / FROM_BACKUP / path.name).exists():
            _put_aside(site.state, path.with_suffix(NO_LEDGER).name, b"")
            unknown.append(name)
    return unknown


def _without_approvals(data: bytes, backup: Path) -> bytes:
    """Refusals come back; what was approved waits for a person again."""
    try:
        content = json.loads(data)
        studies = content["studies"].items()
        kept = {digest: entry for digest, entry in studies if entry["state"] != ApprovalState.APPROVED}
    except (ValueError, KeyError, TypeError, AttributeError):
        remedy = "use another backup, or take approvals.json out of this one"
        raise ConfigError(f"{backup}: its approvals.json cannot be read", remedy=remedy) from None
    return private_files.to_json({**content, "studies": kept})


def _refuse_unfinished(
    site: SiteFolder, contents: dict[str, bytes], now: datetime, restored: list[str] | None
) -> list[str]:
    """Studies that had begun and not ended: what they answered since, nobody here remembers.

    ``restored``: the files that were missing and came back; None where all memory was lost.
    """
    refused = []
    for name, data in contents.items():
        if Path(name).name == "settings.json" and (restored is None or name in restored):
            begun = json.loads(data)
            if begun.get("ended_s") is None:
                Approvals(site.approvals_path).refuse_what(begun["study"][-64:], now)
                refused.append(begun["study"][:-65])
    return refused
