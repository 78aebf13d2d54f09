"""One study at one hospital: the site with everything it keeps on the disk.

STATE/journal.sqlite                     attempts, of all studies
STATE/ledger-<data set>.jsonl            privacy spend, of all studies
STATE/from-backup/                       what is known after memory was lost (lost_memory.py)
STATE/models/*.safetensors               models that encrypted studies may begin with, put there by a person
STATE/decisions.jsonl                    what the site decided, of all studies
STATE/studies/<study>/transcript.jsonl   what this site took part in
STATE/studies/<study>/model.safetensors  the finished model
STATE/studies/<study>/work/              the running exchange; empty in between (durable_store.py)
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from secfed.algorithms.framework.base import SiteProgram
from secfed.crypto.attempt import SiteLimits
from secfed.crypto.messages import FinalModel
from secfed.crypto.refusals import Refusal
from secfed.dp.accounting.budget import Budget
from secfed.dp.accounting.events import Event
from secfed.dp.accounting.interface import accountant
from secfed.dp.ledger.heads import Recorded, left_behind, read_copy, read_recorded
from secfed.dp.ledger.ledger import LEDGER, Ledger, has_paid
from secfed.dp.settings import PrivacySection
from secfed.errors import TranscriptError
from secfed.pipeline.noised_algorithm import noise_payments
from secfed.records.chain_file import verify_file, verify_whole_lines
from secfed.records.hash_chain import Entry
from secfed.records.transcript import (
    CLOSED,
    MODEL,
    MOVED,
    SETTINGS,
    TRANSCRIPT,
    Log,
    Transcript,
)
from secfed.runs.final_model import record_of
from secfed.runs.model_record import ModelRecord, metrics_digest
from secfed.runs.run_folder import (
    MODEL_FILE,
    STUDIES_FOLDER,
    TRANSCRIPT_FILE,
    dataset_of,
    ledger_file,
    study_folder,
)
from secfed.site.build import build_site
from secfed.site.containment import Alarm
from secfed.site.durable_store import DurableStore
from secfed.site.idempotent_log import IdempotentLog
from secfed.site.journal import Journal
from secfed.site.lost_memory import check_ledger, copies
from secfed.site.parts import Draws, Member, Services
from secfed.site.privacy import SitePrivacy
from secfed.site.release_ledger import ReleaseLedger
from secfed.site.session import Site
from secfed.site.terms import Terms
from secfed.storage.atomic import sync_folder, unwritable_errors, write_durably
from secfed.storage.failpoints import failpoint
from secfed.storage.signed_files import SignedFiles
from secfed.study.warm_start import find_initial_model
from secfed.wire.frames import encode_state

log = logging.getLogger("secfed.agent")


@dataclass
class SiteStudy:
    """A running study at a hospital. Make one with :func:`open_site_study`."""

    site: Site  # answers frames
    terms: Terms
    store: DurableStore  # of the running exchange
    folder: Path  # the study's
    _transcript: Transcript = field(repr=False)
    _journal: Journal = field(repr=False)
    _log: Log = field(repr=False)
    _entries: Callable[[], tuple[Entry, ...]] = field(repr=False)
    _noise: tuple[Event, ...] = ()  # all that it pays for noise in the sums of the study
    _begun_elsewhere: bool = False  # it paid from the ledger of another data set before

    @property
    def privacy(self) -> SitePrivacy | None:
        """Budgets and ledger; None for a study without."""
        return self.site.privacy

    def check_whole(self, steps: Iterable[Event]) -> None:
        """Refuse the study, before its first payment here, if budgets do not carry it to its end.

        Args:
            steps: all that private local steps pay in it, as the program has planned them.

        Raises:
            BudgetExceeded: nothing is paid.
            TranscriptError: as of :meth:`secfed.dp.ledger.ledger.Ledger.check_study`.

        Security: what is planned depends on how many records the site has, which counts as public, and on
        nothing else of them.
        """
        planned = tuple(steps)
        if self.privacy is not None and planned and not self._begun_elsewhere:
            self.privacy.ledger.check_study(self.terms.study_id, (*self._noise, *planned))

    def set_budgets(self, budgets: Sequence[Budget]) -> None:
        """Put budgets in force; the ledger records a change before it pays the next time."""
        if self.privacy is not None:
            self.privacy.ledger.budgets = _in_force(self.privacy.settings, budgets)

    def mend(self) -> None:
        """Make the transcript take entries again after a write that failed."""
        self._transcript.mend()

    def close(self) -> None:
        """Close files and worker processes; everything can be opened again."""
        self.site.close()
        self._transcript.close()
        self._journal.close()

    def finish(self) -> None:
        """The study is over: close the transcript, and destroy what was kept for the study.

        Under encrypted protection nobody but the sites can read the model, which is written here. The file
        comes first, then its name in the transcript, and only then the state that it came from is destroyed.
        """
        replica, sums = self.site.replica, self.site.sums
        # Finished before, it has taken no sum since: the model that is there, or was named, was trained.
        if replica is not None and (sums or not self._has_model()):
            data, rounds = encode_state(replica.model()), replica.kept(self.terms.study.rounds)
            failpoint("site: before model written")
            write_durably(self.folder / MODEL_FILE, data)
            failpoint("site: after model written")
            metrics = metrics_digest(replica.metrics(), rounds)
            record = ModelRecord.of(self._entries(), data, rounds=rounds, metrics=metrics, sums=sums)
            self._log.append(MODEL, record.to_body())
            failpoint("site: after model recorded")
            if record.round < rounds:  # nobody but this site can know, and its transcript is seldom read
                log.warning(
                    "the model is the one after round %d of %d: the sums of later rounds did not come about, "
                    "or this site was away; hospitals that took them have a later model",
                    record.round,
                    rounds,
                    extra={"facts": {"study": self.terms.study_id}},
                )
        self._log.append(CLOSED, self._transcript.closing())
        self.store.forget()

    def _has_model(self) -> bool:
        return (self.folder / MODEL_FILE).exists() or any(entry.kind == MODEL for entry in self._entries())


def _take_model(folder: Path, log: Log, entries: Callable[[], tuple[Entry, ...]], final: FinalModel) -> None:
    """Keep a finished model that the aggregator signed: the file first, then its name in the transcript."""
    record = record_of(final)
    if any(e.body.get("sha256") != record.sha256.hex() for e in entries() if e.kind == MODEL):
        raise Refusal.MODEL_MISMATCH.refuse("this site was given another one")
    failpoint("site: before model written")
    write_durably(folder / MODEL_FILE, final.model)
    failpoint("site: after model written")
    log.append(MODEL, record.to_body())
    failpoint("site: after model recorded")


def open_site_study(
    terms: Terms,
    member: Member,
    state: Path,
    *,
    program: Callable[[Terms, DurableStore, Ledger | None], SiteProgram],
    limits: SiteLimits,
    dataset: str,
    budgets: Sequence[Budget],
    granted: bytes = b"",
    simulated: bool = False,
    on_entry: Callable[[str, Mapping[str, object]], None] = lambda _kind, _body: None,
    alarm: Alarm = lambda _failure: None,
) -> SiteStudy:
    """Open a study at this hospital, and go on where a crash interrupted it.

    Args:
        state: the site's state folder; one process at a time.
        program: makes the local work.
        granted: digest of what else the site permits; with another one, or another data set, the exchange
            that was running is over.
        simulated: take rounding and noise from the study's seed, as ``secfed simulate`` does. Tests only.

    Raises:
        SecfedError: a file that cannot be read or was changed, or a program that cannot be made.

    Security: with ``simulated`` anybody who knows the study can remove the noise and undo the rounding.
    """
    study, identity, folder = terms.study, member.identity, study_folder(state, terms.study_id)
    with unwritable_errors(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        sync_folder(folder.parent)
    with ExitStack() as opened:  # closed again where anything below fails
        journal = Journal(state / "journal.sqlite")
        opened.callback(journal.close)
        own_ledgers = ledgers_but(state, dataset, identity.public_bytes, identity.name)
        others = tuple(own_ledgers) if study.privacy is not None else ()
        elsewhere = any(has_paid(paid, terms.study_id) for _, paid in others)
        noise = noise_payments(terms.algorithm, study.rounds, identity.name, terms.sites)
        ledger = _open_ledger(terms, member, state, dataset, budgets, () if elsewhere else noise)
        store = DurableStore(
            SignedFiles(folder / "work", identity, terms.study_id),
            journal,
            terms.study_id,
            began=(lambda _release: None) if ledger is None else ledger.enter,
            opened_with=hashlib.sha256(dataset.encode() + b"\0" + granted).digest(),
        )
        path = folder / TRANSCRIPT_FILE
        transcript = Transcript(identity, study=terms.study_id, roster_digest=member.roster.digest, sink=path)
        opened.callback(transcript.close)
        entries = partial(verify_file, path, identity.public_bytes, TRANSCRIPT, owner=identity.name)
        log = IdempotentLog(transcript, entries(), on_entry)
        log.append(SETTINGS, study.settings(len(terms.sites)))
        left = left_behind(others, entries(), terms.study_id)
        if left:  # the policy gave it another data set: an update that was paid there may have left
            log.append(MOVED, {"ledgers": left})
        site = build_site(
            terms,
            member,
            program(terms, store, ledger),
            limits=terms.limits(limits),
            draws=Draws.seeded(study.seed, identity.name) if simulated else store.draws,
            store=store,
            services=Services(
                log,
                alarm,
                take_model=partial(_take_model, folder, log, entries),
                initial_model=partial(find_initial_model, study, terms.algorithm, state),
            ),
            ledger=ledger,
        )
        site.resume()
        opened.pop_all()
    return SiteStudy(site, terms, store, folder, transcript, journal, log, entries, noise, elsewhere)


def _in_force(settings: PrivacySection, budgets: Sequence[Budget]) -> tuple[Budget, ...]:
    """The budgets of a policy; without any, what is spent is shown at the study's own delta."""
    return tuple(budgets) or (Budget(None, settings.delta, protects=settings.budgeted),)


def _open_ledger(
    terms: Terms,
    member: Member,
    state: Path,
    dataset: str,
    budgets: Sequence[Budget],
    noise: Iterable[Event],
) -> ReleaseLedger | None:
    settings = terms.study.privacy
    if settings is None:
        return None
    ledger = ReleaseLedger(
        ledger_file(state, dataset),
        member.identity,
        dataset,
        _in_force(settings, budgets),
        accountant=accountant(settings.accountant),
        recorded=recorded_heads(state, dataset),
    )
    ledger.check_study(terms.study_id, noise)
    return ledger


def ledgers_but(
    state: Path, dataset: str, identity_key: bytes, owner: str
) -> Iterator[tuple[str, tuple[Entry, ...]]]:
    """The verified ledgers of a site's other data sets, without one that does not verify: audits find it.

    An unfinished last line, of a payment that a crash interrupted, does not count.
    """
    for path in sorted(state.glob("ledger-*.jsonl")):
        if path != ledger_file(state, dataset):
            with suppress(TranscriptError):
                yield dataset_of(path), verify_whole_lines(path, identity_key, LEDGER, owner=owner)


def recorded_heads(state: Path, dataset: str) -> Iterator[Recorded]:
    """What the transcripts of all studies recorded of a data set's ledger, and what backups had of it.

    Raises:
        TranscriptError: the site lost its memory, and nothing is known of this ledger.
    """
    check_ledger(state, dataset)
    for path in sorted(state.glob(f"{STUDIES_FOLDER}/*/{TRANSCRIPT_FILE}")):
        yield from (one for one in read_recorded(path) if one.dataset == dataset)
    for path in copies(state, dataset):
        yield read_copy(dataset, path)
