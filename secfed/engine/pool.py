"""Site programs that work elsewhere: any free worker does, and one that dies costs time only.

    site -> its state, kept here -> a free worker, preferably one that has it -> summands and the new state

A worker is another process that answers one message at a time (:class:`Link`). It holds site programs, but
nothing that is not here as well: one that ends in the middle of its work is replaced, and the next begins
where the lost one did. What was paid for the lost work is not paid again, since the same work follows.
"""

from __future__ import annotations

import hashlib
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any, Final, Protocol, TypeVar

import torch

from secfed.dp.accounting.events import from_value
from secfed.dp.ledger.ledger import Ledger
from secfed.dp.training.local_privacy import LocalPrivacy
from secfed.dp.training.unit_sums import UnitSums
from secfed.engine.interface import Engine
from secfed.engine.kept_programs import PROGRAMS_KEPT, KeptProgram
from secfed.engine.wire import DEFECT, Job, Tensors, error_head, raise_error
from secfed.errors import DataError, LinkError, RangeError, SecfedError, WrongState
from secfed.site.containment import Alarm, Failure
from secfed.wire.frames import encode_state
from secfed.wire.layout import Exchange, State, Summands

_Given = TypeVar("_Given")
_TRIES: Final = 4  # workers that may die of one piece of work, until it is the work's fault


class WorkerDied(LinkError):
    """A worker ended, or cannot be reached."""


class Misfit(SecfedError):
    """A program gave what does not fit its study; to add zeros for it would hide a mistake."""


class Defect(Exception):
    """A defect of a program: not a refusal of one hospital, it ends the study."""

    def __init__(self, message: str, own_place: str | None) -> None:
        super().__init__(message)
        self.own_place = own_place  # file and line in somebody's own code, if it was there


class EngineEnded(Exception):
    """No worker can be had any more: not a dropout of one hospital, it ends the study."""


@contextmanager
def link_errors() -> Iterator[None]:
    """What ended an engine, as an error that says what to do."""
    try:
        yield
    except EngineEnded as ended:
        raise LinkError(str(ended), remedy="run the same command again: it gives the same model") from None


class Late(LinkError):
    """A worker did not answer in time."""


class Link(Protocol):
    """One worker, as seen from here."""

    def ask(
        self, head: Mapping[str, Any], tensors: Tensors, timeout_s: float | None
    ) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        """Send one message and wait for the answer.

        Raises:
            WorkerDied: it ended.
            Late: no answer in ``timeout_s`` seconds.
        """
        ...

    def close(self) -> None:
        """End it, whatever it is doing."""
        ...


class Worker:
    """What is known of one worker."""

    def __init__(self, number: int) -> None:
        self.number = number  # counted from 0
        self.link: Link | None = None
        self._losing = threading.Lock()
        # site -> how many contributions its state there has behind it; who worked last is last
        self.holds: dict[str, int] = {}
        self.broadcast = b""  # digest of the state that it has

    def make_room(self, most: int) -> None:
        """For one more site; it is told to put away the others."""
        for site in list(self.holds)[: max(0, len(self.holds) + 1 - most)]:
            del self.holds[site]

    def lose(self) -> None:
        """Nothing is known of it any more."""
        with self._losing:  # a site's thread and the end of the engine may both find it lost
            link, self.link = self.link, None
            self.holds, self.broadcast = {}, b""
        if link is not None:
            link.close()


class Pool(Engine):
    """An engine of several workers.

    Args:
        job: of any site; the rest follows from it.
        deadline_s: seconds for one site's work on one exchange; a site that takes longer has dropped out.

    Attributes:
        programs: how many site programs a worker holds at most.
    """

    programs = PROGRAMS_KEPT

    def __init__(self, job: Job, workers: int, deadline_s: float | None) -> None:
        self.job, self.workers, self.deadline_s = job, workers, deadline_s
        self.all = [Worker(number) for number in range(workers)]
        self._free = list(self.all)
        self._waiting: list[Worker] = []  # the homes of sites that wait for a worker
        self.change = threading.Condition()
        self._sites = 0
        self.closed = False

    @abstractmethod
    def connect(self, number: int) -> Link:
        """A new worker, in the place of this number.

        Raises:
            EngineEnded: there can be none.
        """

    def program(self, site: str, alarm: Alarm, ledger: Ledger | None) -> RemoteProgram:
        """Its records are read now, so that what is wrong with them shows now."""
        home = self.all[self._sites % self.workers]
        self._sites += 1
        program = RemoteProgram(self, home, site, alarm, ledger)
        program.begin()
        return program

    @contextmanager
    def borrow(self, home: Worker) -> Iterator[Worker]:
        """A worker for one piece of work: ``home``, or one that no site that waits is at home with.

        Elsewhere the site's program has to be made anew.
        """
        with self.change:
            self._waiting.append(home)
            while (worker := self._suiting(home)) is None:
                self.change.wait()
            self._waiting.remove(home)
            self._free.remove(worker)
        try:
            yield worker
        finally:
            with self.change:
                self._free.append(worker)
                self.change.notify_all()

    def _suiting(self, home: Worker) -> Worker | None:
        if home in self._free:
            return home
        return next((worker for worker in self._free if worker not in self._waiting), None)

    def close(self) -> None:
        """End all workers."""
        with self.change:
            self.closed = True
            for worker in self.all:
                worker.lose()

    def link_of(self, worker: Worker) -> Link:
        """To a worker, which is started if it is not there; WorkerDied once the engine is closed."""
        with self.change:  # or what a thread starts now would outlive the engine
            if self.closed:
                raise WorkerDied("the engine is closed")
            if worker.link is None:
                worker.link = self.connect(worker.number)
            return worker.link


class RemoteProgram(KeptProgram):
    """One site's program, somewhere else."""

    def __init__(self, pool: Pool, home: Worker, site: str, alarm: Alarm, ledger: Ledger | None) -> None:
        self._pool, self._home, self._site = pool, home, site
        self._alarm, self._ledger = alarm, ledger
        self._kept: Tensors = {}
        self._version = 0  # contributions behind what is kept
        self._weak_delta = False
        self._engines: set[str] = set()  # of private steps

    def use_privacy(self, privacy: LocalPrivacy) -> None:
        """The worker makes its own; payments are made here."""
        privacy.weak_delta, privacy.engines = self._weak_delta, self._engines

    def use_unit_sums(self, sums: UnitSums) -> None:
        """As :meth:`use_privacy`."""
        sums.weak_delta = self._weak_delta

    def kept(self) -> State:
        """What the worker kept with the newest contribution."""
        return self._kept

    def go_on(self, kept: State) -> None:
        """A worker is given it before the next work."""
        self._kept = kept
        self._version += 1

    def begin(self) -> None:
        """Let a worker make the program."""
        self._with_worker(self._start)

    def contribute(self, round_number: int, exchange: Exchange, broadcast: State) -> Summands:
        """Let a worker work on one exchange; what fails there because of values it contains there.

        Raises:
            BudgetExceeded, TranscriptError: a payment was refused.
            Late: it took too long.
            WorkerDied: of this work, again and again.
            Misfit, Defect: a mistake of the program.
        """
        end_s: float | None = None  # known once there is a worker: to wait for one is not the site's fault
        state = encode_state(broadcast)
        digest = hashlib.sha256(state).digest()
        paid: list[Any] = []

        def work(worker: Worker) -> Tensors:
            nonlocal end_s
            if end_s is None and self._pool.deadline_s is not None:
                end_s = time.monotonic() + self._pool.deadline_s
            if worker.holds.get(self._site) != self._version:
                self._start(worker)
            if worker.broadcast != digest:
                self._ask(worker, {"do": "broadcast"}, broadcast)
                worker.broadcast = digest
            del worker.holds[self._site]  # how far it gets is not known
            head: dict[str, Any] = {
                "do": "work",
                "site": self._site,
                "round": round_number,
                "exchange": exchange.name,
            }
            reply, tensors = self._ask(worker, head, end_s=end_s)
            payments = iter(paid.copy())
            while reply.get("do") == "spend":
                try:
                    answer = self._pay(reply, payments, paid)
                except SecfedError as error:
                    self._ask(worker, error_head(error))
                    raise
                reply, tensors = self._ask(worker, answer, end_s=end_s)
            for fields, kind in reply["failed"]:
                self._alarm(Failure(round_number, exchange.name, tuple(fields), kind))
            self._engines.update(reply.get("engines", ()))
            self._kept = {name[2:]: value for name, value in tensors.items() if name.startswith("k/")}
            self._version += 1
            worker.holds[self._site] = self._version
            return {name[2:]: value for name, value in tensors.items() if name.startswith("s/")}

        try:
            return self._with_worker(work)
        except (RangeError, DataError) as error:  # of values alone: the worker has contained them
            raise Misfit(error.message, remedy=error.remedy) from None

    def _start(self, worker: Worker) -> None:
        job = replace(self._pool.job, site=self._site)
        worker.make_room(self._pool.programs)
        head = {"do": "start", "site": self._site, "job": asdict(job), "others": list(worker.holds)}
        reply, _ = self._ask(worker, head, self._kept)
        self._weak_delta = bool(reply["weak_delta"])
        worker.holds[self._site] = self._version

    def _ask(
        self,
        worker: Worker,
        head: Mapping[str, Any],
        tensors: Tensors | None = None,
        end_s: float | None = None,
    ) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        """What a worker answers; what it raised is raised here."""
        link = self._pool.link_of(worker)
        timeout_s = None if end_s is None else max(0.0, end_s - time.monotonic())
        reply, answer = link.ask(head, tensors or {}, timeout_s)
        if reply.get("kind") == DEFECT:
            raise Defect(str(reply.get("message")), reply.get("own"))
        raise_error(reply)
        return reply, answer

    def _with_worker(self, work: Callable[[Worker], _Given]) -> _Given:
        for _ in range(_TRIES):
            with self._pool.borrow(self._home) as worker:
                try:
                    return work(worker)
                except WorkerDied:
                    worker.lose()
                    if self._pool.closed:
                        raise
                except Late:
                    worker.lose()
                    raise Late(
                        f"{self._site} did not finish its work in {self._pool.deadline_s:g} seconds",
                        remedy="give it more with --site-deadline",
                    ) from None
                except SecfedError:
                    raise
                except BaseException:
                    worker.lose()  # in the middle of what it was told
                    raise
        raise WorkerDied(
            f"{_TRIES} workers in a row ended during the work of {self._site}",
            remedy="most often memory is missing: use fewer --workers, or smaller batches",
        )

    def _pay(self, reply: Mapping[str, Any], before: Iterator[Any], paid: list[Any]) -> dict[str, Any]:
        """Pay for what the worker is about to do, unless a worker that died was about to do the same."""
        event, ledger = reply["event"], self._ledger
        if next(before, None) != event:
            if ledger is None:
                raise WrongState("a worker asked for a payment in a study without private local steps")
            ledger.spend(
                from_value(event),
                study=self._pool.job.study,
                round_number=reply["round"],
                exchange=reply["exchange"],
            )
            paid.append(event)
        return {"do": "paid"}
