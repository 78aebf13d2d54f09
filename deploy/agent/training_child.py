"""The process that trains: it has the data and the model; it has no key, no ledger and no connection.

Started by the agent as ``python -m secfed.deploy.agent.training_child``. A crash here, or the kernel's
out-of-memory killer, costs this site's share of the exchange and nothing else. Private work is paid for by
the agent: this process asks, and waits for the answer before it touches a record.
"""

from __future__ import annotations

import os
import sys
import traceback
from contextlib import nullcontext
from functools import partial
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, cast

import torch

from secfed.algorithms.framework.base import Algorithm, SiteProgram
from secfed.algorithms.framework.randomness import seeded
from secfed.algorithms.framework.unfit import counted_as_defaults
from secfed.deploy.agent.training_wire import (
    SOCKET_VARIABLE,
    Job,
    Tensors,
    error_head,
    raise_error,
    receive,
    send,
)
from secfed.deploy.enrolment.training_user import no_new_privileges
from secfed.errors import DataError, InconsistentView, SecfedError
from secfed.site.containment import Failure, contained
from secfed.study.build import build
from secfed.study.study import Study
from secfed.wire.layout import Exchange, Summands

if TYPE_CHECKING:
    from collections.abc import Callable

    from secfed.dp.accounting.events import Event
    from secfed.dp.ledger.ledger import Ledger
    from secfed.dp.mechanisms.randomness import SecureRandom
    from secfed.dp.settings import PrivacySection
    from secfed.dp.training.local_privacy import LocalPrivacy
    from secfed.dp.training.unit_sums import UnitSums

_PROGRAM = "program/"
_MOST_SHOWN = 100  # values that do not fit the study, in the log of training; there may be millions


class _AskingLedger:
    """Asks the agent to pay; stands in for a ledger in ``LocalPrivacy``."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def spender(self, *, study: str, round_number: int, exchange: str) -> Callable[[Event], None]:
        """As :meth:`secfed.dp.ledger.ledger.Ledger.spender`."""
        from secfed.dp.accounting.events import to_value

        def spend(event: Event) -> None:
            place = {"study": study, "round": round_number, "exchange": exchange}
            send(self._connection, {"do": "spend", "event": to_value(event), **place})
            head, _ = receive(self._connection)
            raise_error(head)

        return spend


class Trainer:
    """One study's program in this process; ``kept`` is what an earlier process kept."""

    def __init__(self, job: Job, connection: Connection, kept: Tensors) -> None:
        study = Study.parse(job.settings, own_code=frozenset(job.own_code))
        if job.data_path is not None:
            study = study.replace("data.path", job.data_path)
        self._job, self._seed = job, study.seed
        self._algorithm: Algorithm = build(study, site_seed=job.site_seed)
        self.unfit = 0  # values that count as defaults
        # In a simulation all records belong to whoever runs it: there a value that does not fit is an error.
        with nullcontext() if job.simulated or job.strict else counted_as_defaults(self._hear):
            self._program: SiteProgram = self._algorithm.site(job.site)
        self._local: LocalPrivacy | UnitSums | None = None
        self._local_key = b""
        if study.privacy is not None and study.privacy.hides_records:
            self._prepare(study.privacy, connection, kept)
        own = {n.removeprefix(_PROGRAM): value for n, value in kept.items() if n.startswith(_PROGRAM)}
        if own:
            self._program.load(own)

    def _prepare(self, settings: PrivacySection, connection: Connection, kept: Tensors) -> None:
        """Let the program clip its units, and add noise to them unless the sum carries it."""
        from secfed.dp.training.local_privacy import WEAK_DELTA, LocalPrivacy
        from secfed.dp.training.unit_sums import UnitSums

        job = self._job
        most = job.max_delta_times_records
        if settings.noise == "sum":
            sums = UnitSums(settings, seed=self._seed, random=self._random, max_delta_times_records=most)
            self._program.use_unit_sums(sums)
            self._local = sums
        else:
            local = LocalPrivacy(
                settings,
                cast("Ledger", _AskingLedger(connection)),  # only its spender is used
                study=job.study,
                seed=self._seed,
                random=self._random,
                max_delta_times_records=most,
            )
            self._program.use_privacy(local)
            local.load({n: value for n, value in kept.items() if not n.startswith(_PROGRAM)})
            self._local = local
        if self._local.weak_delta:
            print(WEAK_DELTA, file=sys.stderr)  # the log of training, which stays at the site

    def _hear(self, error: DataError) -> None:
        if self.unfit < _MOST_SHOWN:
            print(f"counts as a default: {error}", file=sys.stderr)
        self.unfit += 1

    def settled(self, head: dict[str, Any]) -> Tensors:
        """What the program adds to one exchange whatever its values do."""
        found = self._program.settled(int(head["round"]), self._exchange(head))
        return {name: torch.as_tensor(value, dtype=torch.float64) for name, value in found.items()}

    def contribute(self, head: dict[str, Any], broadcast: Tensors) -> tuple[Tensors, Tensors, list[Failure]]:
        """Work on one exchange: what to add to the sum, what to keep for later, and what failed.

        Failures are contained here, so that the program goes on with the state that it has.
        """
        number, exchange = int(head["round"]), self._exchange(head)
        if self._local is not None:
            self._local_key = bytes.fromhex(head["local_key"])
            self._local.enter(number, exchange.name)

        seed = self._job.site_seed

        def work() -> Summands:
            try:
                # For own code that draws from torch's global generator: secret, and the same after a crash.
                with (
                    nullcontext()
                    if seed is None
                    else seeded(seed, "work", self._job.site, number, exchange.name)
                ):
                    return self._program.contribute(number, exchange, broadcast)
            except Exception:
                traceback.print_exc()  # into the log of this process, which stays at the site
                raise

        found: list[Failure] = []
        given = contained(
            number, exchange, work, partial(self._program.settled, number, exchange), found.append
        )
        kept = {_PROGRAM + name: value for name, value in self._program.save().items()}
        if self._local is not None:
            kept |= self._local.save()
        return given, kept, found

    def _exchange(self, head: dict[str, Any]) -> Exchange:
        number, name = int(head["round"]), str(head["exchange"])
        plan = [exchange for exchange in self._algorithm.exchanges(number) if exchange.name == name]
        if not plan:
            raise InconsistentView(f"round {number} of this study has no exchange {name!r}")
        return plan[0]

    def _random(self, number: int, exchange: str) -> SecureRandom:
        from secfed.dp.mechanisms.randomness import SecureRandom

        if self._job.simulated:
            return SecureRandom.for_simulation(self._seed, "local steps", self._job.site, number, exchange)
        return SecureRandom(self._local_key)


def serve(connection: Connection) -> None:
    """Answer the agent until it closes the connection."""
    trainer: Trainer | None = None
    while True:
        try:
            head, tensors = receive(connection)
        except (EOFError, OSError):
            return
        try:
            if head["do"] == "start":
                trainer = Trainer(Job(**head["job"]), connection, tensors)
                send(connection, {"do": "started", "unfit": trainer.unfit})
            elif trainer is not None and head["do"] == "settled":
                send(connection, {"do": "done"}, trainer.settled(head))
            elif trainer is not None:
                summands, kept, failures = trainer.contribute(head, tensors)
                both = {f"s/{name}": value.clone() for name, value in summands.items()}
                both |= {f"k/{name}": value.clone() for name, value in kept.items()}
                failed = [[list(one.fields), one.kind] for one in failures]
                send(connection, {"do": "done", "failed": failed}, both)
        except SecfedError as error:
            if error.__cause__ is not None:  # what went wrong inside own code, for whoever wrote it
                traceback.print_exception(error.__cause__)
            send(connection, error_head(error))


def main() -> int:
    """Entry point of the process."""
    no_new_privileges()
    torch.set_num_threads(max(1, int(os.environ.get("OMP_NUM_THREADS", "0") or torch.get_num_threads())))
    descriptor = int(os.environ.pop(SOCKET_VARIABLE))
    with Connection(descriptor) as connection:
        try:
            serve(connection)
        except Exception:  # noqa: BLE001 - the last resort of a process: what it leaves is its log
            traceback.print_exc()  # no local variables; the log stays at the site
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
