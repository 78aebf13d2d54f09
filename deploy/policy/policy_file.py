"""The policy in force: that of the file, or while the file is not valid, the last one that was.

Editors write files in place, and a person makes typing errors. An agent that knows a valid policy goes on
with it and says so. A file that is not there, or cannot be read, is no slip: then nothing is permitted.
"""

from __future__ import annotations

import hashlib
import logging
from contextlib import suppress
from pathlib import Path

from secfed.deploy.policy.policy import Policy
from secfed.errors import ConfigError
from secfed.storage import private_files

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
        """The policy in force; ``ConfigError`` if the file cannot be read, or none was ever valid here."""
        data = private_files.read(self.path, "a policy")
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
        self._valid = data, policy
        self._noted("")
        return policy

    def sha256(self) -> str:
        """Digest of the policy in force; of the file as it is, where none was ever valid here."""
        data = private_files.read(self.path, "a policy")
        with suppress(ConfigError):
            self.load()
        return hashlib.sha256(data if self._valid is None else self._valid[0]).hexdigest()

    def _noted(self, trouble: str) -> None:
        if trouble and trouble != self.trouble:
            log.error("the policy is not valid, and the last valid one stays in force: %s", trouble)
        elif self.trouble and not trouble:
            log.info("the policy is valid again")
        self.trouble = trouble
