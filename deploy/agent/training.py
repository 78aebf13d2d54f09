"""The agent's side of local training: a process of its own does the work, and may die of it."""

from __future__ import annotations

import hashlib
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from secfed.algorithms.framework.base import SiteProgram
from secfed.deploy.enrolment.training_user import TrainingUser
from secfed.dp.accounting.events import from_value
from secfed.engine.wire import SOCKET_VARIABLE, Job, Tensors, error_head, raise_error, receive, send
from secfed.errors import (
    BudgetExceeded,
    ConfigError,
    MalformedMessage,
    RoundAborted,
    SecfedError,
    TranscriptError,
)
from secfed.site.containment import DATA, LOADING, UNFIT, Alarm, Failure
from secfed.storage.failpoints import failpoint
from secfed.wire.frames import encode_state
from secfed.wire.layout import Exchange, State, Summands

if TYPE_CHECKING:
    from secfed.dp.accounting.events import Event
    from secfed.dp.ledger.ledger import Ledger
    from secfed.dp.training.local_privacy import LocalPrivacy
    from secfed.dp.training.unit_sums import UnitSums

log = logging.getLogger("secfed.agent")

_CHILD = "secfed.deploy.agent.training_child"
_DYING_S = 5.0
# What a training process needs of the environment; not keys, passphrases or proxies.
_PASSED = (
    "PATH",
    "HOME",
    "LANG",
    "LC_ALL",
    "TMPDIR",
    "PYTHONPATH",
    "LD_LIBRARY_PATH",
    "MPLCONFIGDIR",
    "PYTHONDONTWRITEBYTECODE",
    "SECFED_IMAGE_CACHE",
)
_PASSED_PREFIXES = ("OMP_", "MKL_", "CUDA_", "NVIDIA_", "SECFED_DATA")


class Stopping(BaseException):
    """The agent is told to stop while it waits for training: no outcome, the work will be done again."""


class TrainingDied(RoundAborted):
    """The training process ended in the middle of its work, or sent something that is not a message."""


@dataclass(eq=False)
class TrainingProcess(SiteProgram):
    """A site program whose work is done by another process.

    The process works from what is on the disk, as a new one would. Where its own state is another (its last
    contribution was not kept, or it failed in the middle), it is ended, and the next one starts from the
    disk: work that is done again is then the same work, and not a second release for one payment.
    """

    job: Job
    _: KW_ONLY
    gpu: bool
    log_path: Path  # gets what the process prints (mode 0600): it may tell about records, so it stays here
    local_key: Callable[[int, str], bytes] | None  # of sampling and noise, for private steps
    ledger: Ledger | None  # pays for private steps
    stored: Callable[[], Tensors]  # what the program kept with the newest contribution, as it is on the disk
    alarm: Alarm = lambda _failure: None  # told of what failed there and added zeros, or counts as a default
    user: TrainingUser | None = None  # the account that it runs in; None for this process's own

    def __post_init__(self) -> None:
        self._unpaid: SecfedError | None = None  # a payment of the running work that was refused
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self.kept: Tensors = {}
        self._state = b""  # digest of what the process has as its state
        self.deaths = 0
        self.planned: tuple[Event, ...] = ()  # once started: all that its private steps pay in the study
        self._stopping = False

    def use_privacy(self, privacy: LocalPrivacy) -> None:
        """The other process makes its own; payments are made here."""
        del privacy

    def use_unit_sums(self, sums: UnitSums) -> None:
        """As :meth:`use_privacy`."""
        del sums

    def save(self) -> State:
        """What to keep with the contribution just made."""
        return self.kept

    def settled(self, round_number: int, exchange: Exchange) -> Summands:
        """What the program adds whatever its values do: asked first, for the process may die of the work."""
        self.start()
        return self._ask({"do": "settled", "round": round_number, "exchange": exchange.name})[1]

    def contribute(self, round_number: int, exchange: Exchange, broadcast: State) -> Summands:
        """Let the other process work on one exchange; what fails there it contains there.

        ``TrainingDied``: it died; ``BudgetExceeded``, ``TranscriptError``: a payment was refused;
        ``Stopping``: :meth:`stop` was called meanwhile.
        """
        self.kept = {}  # what was kept before stays on the disk, if nothing follows
        head: dict[str, Any] = {"do": "work", "round": round_number, "exchange": exchange.name}
        try:
            self.start()
            if self.local_key is not None:
                head["local_key"] = self.local_key(round_number, exchange.name).hex()
            reply, tensors = self._ask(head, broadcast)
            while reply.get("do") == "spend":
                try:
                    paid = self._pay(reply, round_number, exchange.name)
                except MalformedMessage:
                    raise self._death() from None
                reply, tensors = self._ask(paid)
            for fields, kind in reply.get("failed", ()):
                self.alarm(Failure(round_number, exchange.name, tuple(map(str, fields)), str(kind)))
            self.kept = {name[2:]: value for name, value in tensors.items() if name.startswith("k/")}
            self._state = _digest(self.kept)
            return {name[2:]: value for name, value in tensors.items() if name.startswith("s/")}
        except BaseException:
            self.close()  # how far it got is not known
            raise

    def _ask(self, head: Mapping[str, Any], tensors: Tensors | None = None) -> tuple[dict[str, Any], Tensors]:
        """What the process answers; what it raised is raised here."""
        try:
            if self._connection is None:
                raise EOFError
            send(self._connection, head, tensors)
            reply, answer = receive(self._connection)
        except (EOFError, OSError, MalformedMessage):
            raise self._unpaid or self._death() from None
        if self._unpaid is not None:
            raise self._unpaid  # whatever the process made of it
        raise_error(reply)
        return reply, answer

    def close(self) -> None:
        """End the process, whatever it is doing."""
        if self._connection is not None:
            self._connection.close()
        if self._process is not None:
            self._process.kill()  # it keeps nothing that is not here
            self._process.wait()
        self._process = self._connection = self._unpaid = None

    def stop(self) -> None:
        """Give up the work that is going on; from a signal handler or another thread."""
        self._stopping, process = True, self._process
        if process is not None:
            process.kill()

    def _pay(self, reply: Mapping[str, Any], round_number: int, exchange: str) -> dict[str, Any]:
        """Pay for what the process is about to do; only for the exchange it was given."""
        ledger = self.ledger
        if ledger is None or (reply.get("round"), reply.get("exchange")) != (round_number, exchange):
            raise MalformedMessage("the training process asked for a payment out of place")
        failpoint("agent: before payment")
        try:
            ledger.spend(
                from_value(reply.get("event")),
                study=self.job.study,
                round_number=round_number,
                exchange=exchange,
            )
        except SecfedError as error:
            same = isinstance(error, BudgetExceeded | TranscriptError)
            self._unpaid = error if same else TranscriptError(error.message, remedy=error.remedy)
            return error_head(error)
        failpoint("agent: after payment")
        return {"do": "paid"}

    def start(self) -> None:
        """Start the process, unless a fit one is there: data that cannot be read show now.

        ``SecfedError``: what it raised, or its death.
        """
        if self._process is not None and self._process.poll() is not None:
            self.close()
        if self._connection is not None and _digest(self.stored()) != self._state:
            self.close()
        if self._connection is not None:
            return
        self._spawn()
        try:
            kept = self.stored()
        except (OSError, MalformedMessage):
            raise self._death() from None
        self._state = _digest(kept)
        try:
            reply, _ = self._ask({"do": "start", "job": asdict(self.job)}, kept)
        except TrainingDied:
            raise
        except SecfedError as error:
            self.close()
            log.warning("the training process cannot be started: %s", error)
            if isinstance(error, MalformedMessage):  # of what is kept here; of a broadcast it is a refusal
                raise ConfigError(error.message, remedy=error.remedy) from None
            raise
        try:
            self.planned = tuple(map(from_value, reply.get("planned", ())))
        except (ConfigError, TypeError):
            raise self._death() from None
        if reply.get("unfit"):
            self.alarm(Failure(0, LOADING, (DATA,), UNFIT))

    def _spawn(self) -> None:
        ours, theirs = socket.socketpair()
        if self.log_path.is_file():  # what a death is explained by outlives the restart
            os.replace(self.log_path, self.log_path.with_name(f"{self.log_path.name}.1"))
        log_mode = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        with ours, theirs, os.fdopen(os.open(self.log_path, log_mode, 0o600), "wb") as output:
            environment = {
                name: value
                for name, value in os.environ.items()
                if name in _PASSED or name.startswith(_PASSED_PREFIXES)
            }
            environment[SOCKET_VARIABLE] = str(theirs.fileno())
            if not self.gpu:
                environment["CUDA_VISIBLE_DEVICES"] = ""
            if self.user is not None:
                environment["HOME"] = self.user.home
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", _CHILD],
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    pass_fds=(theirs.fileno(),),
                    **({} if self.user is None else self.user.arguments()),
                )
            except PermissionError:
                raise ConfigError(
                    f"training.user: the account cannot run {sys.executable}",
                    remedy="install secfed where that account can read it, in /opt for example",
                ) from None
            self._connection = Connection(ours.detach())

    def _death(self) -> TrainingDied:
        process, code = self._process, None
        if process is not None:
            try:
                code = process.wait(_DYING_S)
            except subprocess.TimeoutExpired:  # it closed the connection, or babbles, and lives on
                process.kill()
                code = process.wait()
        how = "ended" if code is None or code >= 0 else f"was killed by signal {-code}"
        self.close()
        if self._stopping:
            raise Stopping
        self.deaths += 1
        error = TrainingDied(
            f"the training process {how}; this site adds nothing but weights and counts to this exchange",
            remedy=f"see {self.log_path}; signal 9 is most often a lack of memory",
        )
        log.warning("%s", error)  # an alarm says less
        return error


def _digest(kept: Tensors) -> bytes:
    return hashlib.sha256(encode_state(kept)).digest() if kept else b""
