"""The policy in force: that of the file, or while the file is not valid, the last one that was.

Editors write files in place, and a person makes typing errors. An agent that knows a valid policy goes on
with it and says so. A file that is not there, or cannot be read, is no slip: then nothing is permitted.

The first half of a policy can be a valid policy, too: one that permits more, since what restricts comes last.
So a change is taken once the file has been left alone for a moment; who asks meanwhile waits, and is not
answered by the policy that was. A process that has just started waits like that for a file that is new.
"""

from __future__ import annotations

import hashlib
import logging
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from secfed.deploy.policy.policy import Policy
from secfed.errors import ConfigError
from secfed.storage import private_files
from secfed.storage.atomic import unwritable_errors

SETTLED_S: Final = 3.0  # how long a changed file must have been left alone
_MOST_LOOKS: Final = 20  # at a file that does not stop changing

log = logging.getLogger("secfed.agent")


class PolicyFile:
    """A policy file, read at every use.

    Attributes:
        path: of the file.
        trouble: why the last valid policy is in force, and not the file; empty if it is the file.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.trouble = path, ""
        self._valid: tuple[bytes, Policy] | None = None  # the last one

    def load(self) -> Policy:
        """The policy in force; ``ConfigError`` if the file cannot be read, or none was ever valid here.

        After a change, of which at the start the file's date tells, it takes :data:`SETTLED_S`.
        """
        data, before = self._read(), b""
        for _ in range(_MOST_LOOKS):
            if self._valid is not None and self._valid[0] == data:
                self._noted("")
                return self._valid[1]
            try:
                policy = Policy.parse(data, self.path)
            except ConfigError as error:
                if self._valid is None:
                    raise
                self._noted(str(error))
                return self._valid[1]
            if data == before or (self._valid is None and self._is_left_alone()):
                self._valid = data, policy
                self._noted("")
                return policy
            time.sleep(SETTLED_S)
            data, before = self._read(), data
        raise ConfigError(f"{self.path}: it changes all the time", remedy="write it once, and leave it")

    def _read(self) -> bytes:
        return private_files.read(self.path, "a policy")

    def _is_left_alone(self) -> bool:
        # A date in the future is that of a clock that was put right since, and shows nothing.
        with unwritable_errors(self.path):
            return time.time() - self.path.stat().st_mtime >= SETTLED_S

    def sha256(self) -> str:
        """Digest of the policy in force; of the file as it is, where none was ever valid here."""
        data = self._read()
        with suppress(ConfigError):
            self.load()
        return hashlib.sha256(data if self._valid is None else self._valid[0]).hexdigest()

    def _noted(self, trouble: str) -> None:
        if trouble and trouble != self.trouble:
            log.error("the policy is not valid, and the last valid one stays in force: %s", trouble)
        elif self.trouble and not trouble:
            log.info("the policy is valid again")
        self.trouble = trouble
