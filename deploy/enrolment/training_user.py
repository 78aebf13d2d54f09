"""An account of its own for training, so that code which a policy permits cannot read the agent's keys.

In the agent's account a hospital's own code can read ``identity.key`` and change the ledger; in another, with
no capability and unable to gain one, the system keeps the site's folder from it.

Source: capabilities(7), "Transformation of capabilities during execve()"; prctl(2).
"""

from __future__ import annotations

import ctypes
import os
import pwd
import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from secfed.errors import ConfigError

_KILL, _SETGID, _SETUID = 5, 6, 7  # of linux/capability.h: to end it, and to start it
_NEEDED: Final = (1 << _KILL) | (1 << _SETGID) | (1 << _SETUID)
_NO_NEW_PRIVILEGES: Final = 38  # PR_SET_NO_NEW_PRIVS of linux/prctl.h
_AMBIENT, _CLEAR_ALL = 47, 4  # PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL


@dataclass(frozen=True)
class TrainingUser:
    """An account that training runs in. Make one with :meth:`named`."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]  # every group that it is in; a GPU's may be among them
    home: str

    @classmethod
    def named(cls, name: str, secrets: Iterable[Path]) -> Self:
        """The account of that name, if this process can start others in it."""
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            raise ConfigError(
                f"training.user: this machine has no account {name!r}", remedy="make it, or remove the line"
            ) from None
        owners = {path.stat().st_uid for path in secrets if path.exists()}
        if entry.pw_uid in {0, os.geteuid(), *owners}:
            raise ConfigError(
                f"training.user: {name!r} can read the keys of this site",
                remedy="name an account that owns nothing here",
            )
        if not _may_switch():
            raise ConfigError(
                f"training.user: this account may not start a process as {name!r}",
                remedy="start it as root, or with deploy/systemd/training-user.conf; see docs/operators.md",
            )
        groups = tuple(os.getgrouplist(name, entry.pw_gid))
        return cls(name, entry.pw_uid, entry.pw_gid, groups, entry.pw_dir)

    def arguments(self) -> dict[str, Any]:
        """Arguments of :class:`subprocess.Popen`, for a process that is started next, in this thread."""
        # Ambient capabilities survive exec, and belong to a thread. Root's are dropped with its account.
        if not _prctl(_AMBIENT, _CLEAR_ALL) and os.geteuid() != 0:
            raise ConfigError(
                "training.user: this system cannot take capabilities from the training process",
                remedy="start the agent as root, or remove the line",
            )
        return {"user": self.uid, "group": self.gid, "extra_groups": list(self.groups), "cwd": "/"}


def no_new_privileges() -> None:
    """Nothing that this process runs, or becomes, gains rights, where the system knows this option."""
    _prctl(_NO_NEW_PRIVILEGES, 1)


def _prctl(option: int, argument: int) -> bool:
    library = ctypes.CDLL(None)
    return hasattr(library, "prctl") and library.prctl(option, argument, 0, 0, 0) == 0


def _may_switch() -> bool:
    found = None
    with suppress(OSError):
        status = Path("/proc/self/status").read_text(encoding="ascii")
        found = re.search(r"(?m)^CapEff:\s*([0-9a-f]+)$", status)
    return os.geteuid() == 0 if found is None else int(found[1], 16) & _NEEDED == _NEEDED
