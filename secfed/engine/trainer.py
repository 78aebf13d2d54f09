"""The site programs of one study in a process that has their data: no key, no ledger, no connection outside.

Private work is paid for on the other side: the process asks, and waits for the answer before it touches a
record. What it keeps between exchanges leaves with every answer, so another process can go on from there.
"""

from __future__ import annotations

import sys
import traceback
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import torch

from secfed.algorithms.framework.base import Algorithm, SiteProgram
from secfed.algorithms.framework.randomness import seeded
from secfed.algorithms.framework.unfit import counted_as_defaults
from secfed.dp.accounting.events import to_value
from secfed.engine.kept_programs import PROGRAM
from secfed.engine.wire import (
    Connection,
    Job,
    Tensors,
    defect_head,
    error_head,
    raise_error,
    receive,
    send,
)
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

_MOST_SHOWN = 100  # values that do not fit the study, in the log of training; there may be millions


class _AskingLedger:
    """Asks the agent to pay; stands in for a ledger in ``LocalPrivacy``."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def spender(self, *, study: str, round_number: int, exchange: str) -> Callable[[Event], None]:
        """As :meth:`secfed.dp.ledger.ledger.Ledger.spender`."""

        def spend(event: Event) -> None:
            place = {"study": study, "round": round_number, "exchange": exchange}
            send(self._connection, {"do": "spend", "event": to_value(event), **place})
            head, _ = receive(self._connection)
            raise_error(head)

        return spend


class Trainer:
    """One site's program in this process.

    Args:
        kept: what an earlier process kept.
        built: the study and its algorithm, where they are known here; None makes them from the job.
    """

    def __init__(
        self, job: Job, connection: Connection, kept: Tensors, built: tuple[Study, Algorithm] | None = None
    ) -> None:
        study, self._algorithm = built or _build(job)
        self._job, self._seed, self._quiet = job, study.seed, built is not None
        self._work_seed = study.seed if job.simulated and job.site_seed is None else job.site_seed
        self.unfit = 0  # values that count as defaults
        # In a simulation all records belong to whoever runs it: there a value that does not fit is an error.
        with nullcontext() if job.simulated or job.strict else counted_as_defaults(self._hear):
            self._program: SiteProgram = self._algorithm.site(job.site)
        self._local: LocalPrivacy | UnitSums | None = None
        self._local_key = b""
        if study.privacy is not None and study.privacy.hides_records:
            self._prepare(study.privacy, connection, kept)
        own = {n.removeprefix(PROGRAM): value for n, value in kept.items() if n.startswith(PROGRAM)}
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
            local.load({n: value for n, value in kept.items() if not n.startswith(PROGRAM)})
            self._local = local
        if self.weak_delta and not self._quiet:
            print(WEAK_DELTA, file=sys.stderr)  # the log of training, which stays at the site

    def _hear(self, error: DataError) -> None:
        if self.unfit < _MOST_SHOWN:
            print(f"counts as a default: {error}", file=sys.stderr)
        self.unfit += 1

    @property
    def weak_delta(self) -> bool:
        """Whether the study's delta is 1 / (records of this site) or more."""
        return self._local is not None and self._local.weak_delta

    @property
    def engines(self) -> list[str]:
        """What clipped this site's records so far, where private local steps do."""
        return sorted(getattr(self._local, "engines", ()))

    @property
    def planned(self) -> tuple[Event, ...]:
        """All that private local steps of this site pay in the whole study."""
        return tuple(getattr(self._local, "planned", ()))

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
            self._local_key = bytes.fromhex(head.get("local_key", ""))
            self._local.enter(number, exchange.name)

        seed = self._work_seed

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
                if not self._quiet:
                    traceback.print_exc()  # into the log of this process, which stays at the site
                raise

        found: list[Failure] = []
        known = self.engines
        settled = partial(self._program.settled, number, exchange)
        strict = self._job.only_values
        given = contained(number, exchange, work, settled, found.append, only_values=strict)
        if self.engines != known and not self._quiet:
            print(f"private steps clip records by: {', '.join(self.engines)}", file=sys.stderr)
        kept = {PROGRAM + name: value for name, value in self._program.save().items()}
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


def _build(job: Job) -> tuple[Study, Algorithm]:
    study = Study.parse(job.settings, own_code=frozenset(job.own_code))
    if job.data_path is not None:
        study = study.replace("data.path", job.data_path)
    return study, build(study, site_seed=job.site_seed)


def serve(connection: Connection, built: tuple[Study, Algorithm] | None = None) -> None:
    """Answer the other side until it closes the connection.

    Args:
        built: the study and its algorithm, for a process that works for several sites of a simulation.
    """
    trainers: dict[str, Trainer] = {}
    broadcast: Tensors = {}
    while True:
        try:
            head, tensors = receive(connection)
        except (EOFError, OSError):
            return
        try:
            what, site = head["do"], head.get("site", "")
            if what == "start":
                trainers = {one: trainers[one] for one in head.get("others", ()) if one in trainers}
                trainer = trainers[site] = Trainer(Job(**head["job"]), connection, tensors, built)
                told = {"unfit": trainer.unfit, "weak_delta": trainer.weak_delta}
                planned = [to_value(event) for event in trainer.planned]
                send(connection, {"do": "started", **told, "planned": planned})
            elif what == "broadcast":
                broadcast = tensors
                send(connection, {"do": "done"})
            elif what == "settled":
                send(connection, {"do": "done"}, trainers[site].settled(head))
            else:
                state = (
                    {name: value.clone() for name, value in broadcast.items()} if "site" in head else tensors
                )
                summands, kept, failures = trainers[site].contribute(head, state)
                both = {f"s/{name}": value.clone() for name, value in summands.items()}
                both |= {f"k/{name}": value.clone() for name, value in kept.items()}
                failed = [[list(one.fields), one.kind] for one in failures]
                reply = {"do": "done", "failed": failed, "engines": trainers[site].engines}
                send(connection, reply, both)
        except SecfedError as error:
            if error.__cause__ is not None:  # what went wrong inside own code, for whoever wrote it
                traceback.print_exception(error.__cause__)
            send(connection, error_head(error))
        except Exception as error:
            if built is None:
                raise
            send(connection, defect_head(error))
