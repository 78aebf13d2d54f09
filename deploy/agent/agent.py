"""The hospital's daemon: asks what there is to do, does what its policy permits, and waits.

    hello -> admit -> (next -> still permitted? -> site -> answer)* -> finished -> hello ...

It has connection, keys, journal and ledger; training runs in a process of its own. Nothing that the
aggregator sends is code. Killed at any moment, it goes on where it was (``secfed/site/durable_store.py``).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from datetime import datetime
from typing import Final

from secfed import __version__
from secfed.crypto.identity import Identity, Roster
from secfed.deploy.admission import near_twins
from secfed.deploy.admission.admission import Admitted, admit
from secfed.deploy.admission.decision_recorder import SiteDecisions
from secfed.deploy.admission.offered import check_plan, check_roster, own_files
from secfed.deploy.agent.control import check_not_paused
from secfed.deploy.agent.full_disk import Room, when_there_is_room
from secfed.deploy.agent.status import StatusBoard
from secfed.deploy.agent.study_end import forget, refused_for_good
from secfed.deploy.agent.study_handler import StudyHandler
from secfed.deploy.agent.training import Stopping, TrainingProcess
from secfed.deploy.agent.whole_study import WholeStudies
from secfed.deploy.enrolment.messages import utc_now
from secfed.deploy.enrolment.site_folder import STUDY_ID, SiteFolder
from secfed.deploy.enrolment.site_payments import wasted
from secfed.deploy.policy.absence import REMOVED_TEXT, Absence
from secfed.deploy.transport.client import CallFailed, SiteConnection
from secfed.deploy.transport.flower.client import FlowerClient
from secfed.deploy.transport.grpc.client import GrpcSiteConnection
from secfed.deploy.transport.limits import Backoff, ClientLimits
from secfed.deploy.transport.messages import ANOTHER_STUDY, HelloReply
from secfed.deploy.transport.progress import NOTHING, Waits
from secfed.dp.ledger.ledger import Ledger
from secfed.engine.wire import Job
from secfed.errors import LinkError, SecfedError
from secfed.records.transcript import COMPLAINED, SUMMED, Complaint
from secfed.runs.run_folder import MODEL_FILE, study_folder
from secfed.site.containment import Failure
from secfed.site.durable_store import DurableStore
from secfed.site.parts import Member
from secfed.site.runtime import SiteStudy, open_site_study
from secfed.site.terms import Terms

log = logging.getLogger("secfed.agent")

_CERTIFICATE: Final = "certificate"  # TLS libraries name it when one of them is not valid
_SOFTWARE: Final = f"secfed {__version__}"
_REPLICA: Final = "replica"  # of encrypted_store.py: under encryption, the model that only sites know
_KEPT: Final = ("position", "stopped")  # no secrets: so that nothing of the study is served again
_FAILURES_BEFORE_RECONNECT: Final = 10  # a renewed certificate is read when a connection is made


class Agent:
    """One hospital's agent.

    Args:
        poll_s: pause before asking again about a study that is held, refused or over.
        once: end when a study is over.
        simulated_randomness: take rounding and noise from the study's seed. Tests only: it protects nothing.
    """

    def __init__(
        self,
        folder: SiteFolder,
        *,
        passphrase: str | None,
        board: StatusBoard,
        limits: ClientLimits | None = None,
        now: Callable[[], datetime] = utc_now,
        poll_s: float = 5.0,
        once: bool = False,
        simulated_randomness: bool = False,
    ) -> None:
        self._folder, self._board = folder, board
        limits = limits or ClientLimits()
        self._now, self._poll_s, self._once = now, poll_s, once
        self._identity: Identity = folder.identity(passphrase)
        self._decisions = SiteDecisions(folder, self._identity, now)
        self._pinned: Roster = folder.roster()
        self._roster = self._pinned  # of the study that is visited
        self._passphrase, self._limits = passphrase, limits
        socket = folder.flower_socket
        self._address = folder.address() if socket is None else str(socket)
        self._flower: FlowerClient | None = None
        if socket is not None:
            self._flower = FlowerClient(
                socket, self._identity, folder.roster, software=_SOFTWARE, limits=limits
            )
        self._simulated = simulated_randomness
        self._training_user = folder.training_user()
        self._stopped = threading.Event()
        self._link: SiteConnection | None = None
        self._training: TrainingProcess | None = None
        self._backoff = Backoff(limits.backoff_s, limits.backoff_cap_s)
        self._removed = False  # as the aggregator said last
        self._told = ""  # the reason that was last logged
        self._room = Room(folder.state)
        self._whole = WholeStudies()

    def run(self) -> None:
        """Serve one study after the other until :meth:`stop`, or ``SecfedError`` of the site's own files."""
        if self._simulated:
            log.error("simulated randomness: noise and rounding protect nothing. Tests only.")
        log.info("agent started", extra={"facts": {"site": self._folder.name, "address": self._address}})
        try:
            while not self._stopped.is_set():
                try:
                    if self._visit() and self._once:
                        break
                    self._stopped.wait(self._poll_s)
                except LinkError as error:
                    self._disconnected(error)
                    self._stopped.wait(self._backoff.next_s())
        finally:
            if self._flower is not None:
                self._flower.close()
        self._board.set(state="stopped", connection="closed")
        log.info("agent stopped")

    def stop(self) -> None:
        """End soon; from a signal handler or another thread. What is under way is done again next time."""
        self._stopped.set()
        training, link = self._training, self._link
        if training is not None:
            training.stop()
        if link is not None:
            link.close()

    def _visit(self) -> bool:
        """Ask what is served, and serve it; whether a study came to its end."""
        with self._dial() as asking:
            offer = asking.hello()
            self._connected()
            if offer.finished:
                self._tidy(offer)
                self._ends(offer.study)
                return True
            try:
                admitted = self._admit(offer)
                self._room.check(admitted.terms, self._roster)
                self._decisions.permits(admitted.terms.study, self._pinned)
                near_twins.begin(self._folder, admitted.terms, admitted.data, self._now())
            except SecfedError as error:
                asking.study = offer.study
                self._decline(asking, error)
                return False
        try:
            with ExitStack() as stack:
                # Reading the data may take long, and a site without a sign of life is taken for silent.
                with self._dial(offer.study) as waiting, waiting.alive():
                    opened = stack.enter_context(self._open(admitted))
                    if self._training is not None:
                        self._whole.load(opened, self._training)
                return self._serve(admitted, opened)
        except LinkError:
            raise
        except SecfedError as error:
            # Also a ledger that was restored from a backup: other studies, with other data, go on.
            with self._dial(offer.study) as declining:
                self._decline(declining, error)
            return False
        except Stopping:
            return False

    def _ends(self, study: str) -> None:
        self._decisions.ends(study)
        if STUDY_ID.fullmatch(study):  # it names a folder
            try:
                near_twins.end(self._folder.state, study, self._now())
            except SecfedError as error:  # it is shown as begun and not ended; nothing else depends on it
                log.warning("the end of a study is not noted: %s", error)
        nothing = dict.fromkeys(("round", "exchange", "stage", "why", "waits"))
        self._board.set(state="finished", **nothing)

    def _tidy(self, offer: HelloReply) -> None:
        """Do what the end of a study asks for, if a crash or an outage came between."""
        if not STUDY_ID.fullmatch(offer.study):
            return  # it becomes the name of a folder, and its files are erased
        work = study_folder(self._folder.state, offer.study) / "work"
        if not work.is_dir() or all(path.name in _KEPT for path in work.iterdir()):
            return
        try:
            try:
                with self._open(self._admit(offer)) as opened:
                    opened.finish()
            except SecfedError as error:
                if (work / _REPLICA).exists() and not refused_for_good(self._folder, offer.study, error):
                    raise  # only this leads to the model, which may be written later
                log.warning("a study is over; its secrets go, and it was not opened: %s", error)
                forget(self._folder, self._identity, offer.study, work)
        except SecfedError as error:
            log.error("a study is over, and its secrets in %s are not destroyed: %s", work, error)

    def _admit(self, offer: HelloReply) -> Admitted:
        check_not_paused(self._folder.state)
        with own_files():
            # As it is on the disk now: an administrator may have pinned another one.
            self._pinned = self._folder.roster()
            self._roster = self._folder.roster_of(offer.study, self._pinned)
        if not offer.finished:  # nothing will be asked any more
            check_roster(offer, self._roster)
        try:
            admitted = admit(self._folder, self._roster, offer.study, offer.settings, self._now())
        finally:
            self._board.set(policy_error=self._folder.policy.trouble or None)
        if not offer.finished:
            check_plan(offer, admitted.terms, self._roster)
        return admitted

    def _decline(self, link: SiteConnection, error: SecfedError) -> None:
        state = Absence.of(type(error).__name__, error.message)
        if self._told != str(error):
            self._told = str(error)
            log.warning("study not served: %s", error, extra={"facts": {"study": link.study, "state": state}})
            if state in (Absence.FAILED, Absence.REFUSED):  # the others pass, and are no errors
                self._board.error(str(error))
        self._board.set(study=link.study, state=state, round=None, exchange=None, stage=None, why=str(error))
        self._decisions.declines(link.study, error, self._pinned)
        link.refuse(b"", error)

    def _serve(self, admitted: Admitted, opened: SiteStudy) -> bool:
        study = admitted.terms.study_id
        failures = 0

        def failed(error: CallFailed) -> None:
            nonlocal failures
            failures += 1
            self._disconnected(error)
            if error.lasting or failures % _FAILURES_BEFORE_RECONNECT == 0:
                link.close()  # and ask again what is served, with the certificate that is there now

        def recovered() -> None:
            nonlocal failures
            failures = 0
            self._connected()

        with self._dial(study, admitted.max_frame_bytes) as link:
            self._told = ""
            rounds = admitted.terms.study.rounds
            self._board.set(study=study, state="serving", rounds=rounds, why=None, waits=None)
            log.info("study served", extra={"facts": {"study": study}})
            handler = StudyHandler(
                self._folder,
                admitted.terms,
                admitted.granted,
                opened,
                self._roster,
                self._pinned,
                self._board,
                self._now,
                self._decisions,
                self._stopped.wait,
            )
            # The link knows: to ask again would ask an aggregator that may be gone by now.
            ended = link.serve(
                handler.handle,
                failed=failed,
                recovered=recovered,
                said=self._heard,
                leaves=lambda error: error is handler.withdrawn,
            )
            self._pinned = handler.pinned
            if handler.withdrawn is not None:
                self._room.note(handler.withdrawn)
                self._decline(link, handler.withdrawn)
        if ended:
            when_there_is_room(opened.finish, self._board, self._stopped.wait, opened.mend)
            self._ends(study)
            model = opened.folder / MODEL_FILE
            facts = {"study": study, "model": str(model) if model.exists() else None}
            log.info("study finished", extra={"facts": facts})
            try:
                for _, shown in wasted(self._folder, study):  # it stays at this site
                    log.warning("payments without a sum: %s", shown, extra={"facts": {"study": study}})
            except SecfedError as error:
                log.error("payments without a sum were not looked for: %s", error)
        return ended

    @contextmanager
    def _dial(self, study: str = "", max_frame_bytes: int = 1 << 20) -> Iterator[SiteConnection]:
        link = self._link = self._connection(study, max_frame_bytes)
        try:
            if self._stopped.is_set():
                link.close()
            yield link
        finally:
            self._link = None
            link.close()

    def _connection(self, study: str, max_frame_bytes: int) -> SiteConnection:
        """A new one, with the certificate that is there now; through Flower where ``site.toml`` says so."""
        if self._flower is not None:
            return self._flower.dial(study, max_frame_bytes)
        return GrpcSiteConnection(
            self._address,
            self._folder.tls_material(self._passphrase),
            study=study,
            max_frame_bytes=max_frame_bytes,
            proxy=self._folder.settings.aggregator.proxy,
            software=_SOFTWARE,
            limits=self._limits,
        )

    @contextmanager
    def _open(self, admitted: Admitted) -> Iterator[SiteStudy]:
        def alarm(failure: Failure) -> None:
            # For this hospital only: what failed depends on its records.
            self._board.alarm(str(failure))
            log.warning("local work failed: %s", failure, extra={"facts": {"study": admitted.terms.study_id}})
            self._decisions.alarms(admitted.terms.study, failure)

        def program(terms: Terms, store: DurableStore, ledger: Ledger | None) -> TrainingProcess:
            settings = terms.study.privacy
            local = settings is not None and settings.hides_records
            path = admitted.data_path
            self._training = TrainingProcess(
                Job(
                    site=self._folder.name,
                    settings=admitted.settings,
                    own_code=admitted.own_code,
                    data_path=None if path is None else str(path),
                    study=terms.study_id,
                    simulated=self._simulated,
                    max_delta_times_records=admitted.granted.max_delta_times_records,
                    site_seed=None if self._simulated else store.site_seed(),
                ),
                gpu=admitted.granted.gpu,
                log_path=self._folder.state / "training.log",
                local_key=store.local_key if local else None,
                ledger=ledger,
                stored=store.program,
                alarm=alarm,
                user=self._training_user,
            )
            return self._training

        def on_entry(kind: str, body: Mapping[str, object]) -> None:
            if kind == SUMMED:
                kept = ("round", "exchange", "attempt", "survivors", "fields")
                self._board.left({name: body[name] for name in kept if name in body})
            elif kind == COMPLAINED:
                complaint = Complaint.from_body(body)
                self._board.error(str(complaint))
                log.warning("%s", complaint, extra={"facts": {"study": admitted.terms.study_id}})
                self._decisions.complains(admitted.terms.study, complaint)

        opened = open_site_study(
            admitted.terms,
            Member(self._identity, self._roster),
            self._folder.state,
            program=program,
            limits=admitted.granted.limits,
            dataset=admitted.data.name,
            budgets=admitted.granted.budgets,
            granted=admitted.granted.digest,
            simulated=self._simulated,
            on_entry=on_entry,
            alarm=alarm,
        )
        try:
            yield opened
        finally:
            training, self._training = self._training, None
            if training is not None:
                self._board.count(training_deaths=training.deaths)
                training.close()
            opened.close()

    def _connected(self) -> None:
        if self._backoff.failures:
            log.info("connected")
        self._backoff.failures = 0
        back = {"state": "idle", "why": None} if self._removed else {}
        self._removed = False
        self._board.set(connection="connected", **back)

    def _disconnected(self, error: LinkError) -> None:
        if not self._stopped.is_set():
            self._board.count(failures=1)
            self._removed = REMOVED_TEXT in error.message
            gone = {"state": str(Absence.REMOVED), "why": error.message} if self._removed else {}
            self._board.set(connection="failing", **gone)
            own = self._folder.untimely(self._now()) if _CERTIFICATE in error.message.lower() else ""
            text = f"{error}. Of this site's own: {own}" if own else str(error)
            if not self._removed and ANOTHER_STUDY not in error.message:  # its turn is no fault
                self._board.error(text)
            log.warning("connection: %s", text)

    def _heard(self, reply: HelloReply) -> None:
        waits = Waits(reply.waits, reply.done, reply.of)
        self._board.set(waits=asdict(waits) if waits.kind != NOTHING else None)
