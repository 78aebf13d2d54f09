"""One study at one hospital: the site with everything it keeps on the disk.

STATE/journal.sqlite                     attempts, of all studies
STATE/ledger-<data set>.jsonl            privacy spend, of all studies
STATE/models/*.safetensors               models that encrypted studies may begin with, put there by a person
STATE/decisions.jsonl                    what the site decided, of all studies
(deploy/admission/decision_recorder.py) STATE/studies/<study>/transcript.jsonl   what this site took part in
STATE/studies/<study>/model.safetensors  the finished model
STATE/studies/<study>/work/              the running exchange; empty in between (attempt_store.py)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final

from secfed.algorithms.framework.base import Algorithm, SiteProgram
from secfed.crypto.attempt import SiteLimits
from secfed.crypto.identity import Identity, Roster
from secfed.crypto.keystream import rounding_stream_for_simulation
from secfed.crypto.messages import FinalModel
from secfed.crypto.refusals import Refusal
from secfed.dp.accounting.budget import Budget
from secfed.dp.accounting.interface import accountant
from secfed.dp.ledger.heads import Recorded, read_recorded
from secfed.dp.mechanisms.randomness import SecureRandom
from secfed.errors import PolicyRefused
from secfed.protection.interface import Protection
from secfed.protection.registry import make_protection
from secfed.records.chain_file import verify_file
from secfed.records.hash_chain import Entry
from secfed.records.transcript import MODEL, SETTINGS, TRANSCRIPT, Log, Transcript
from secfed.runs.final_model import record_of
from secfed.runs.model_record import ModelRecord, metrics_digest
from secfed.runs.run_folder import MODEL_FILE, TRANSCRIPT_FILE, ledger_file
from secfed.site.attempt_store import AttemptStore
from secfed.site.containment import Alarm
from secfed.site.idempotent_log import IdempotentLog
from secfed.site.journal import Journal
from secfed.site.make_site import make_site
from secfed.site.privacy import SitePrivacy, first_payment, with_privacy
from secfed.site.release_ledger import ReleaseLedger
from secfed.site.session import Site
from secfed.storage.atomic import unwritable, write_durably
from secfed.storage.failpoints import failpoint
from secfed.storage.signed_files import SignedFiles
from secfed.study.build import build, build_data
from secfed.study.limits import limits_of, study_id
from secfed.study.study import Study
from secfed.study.warm_start import find_initial_model, pinned_model
from secfed.wire.frames import encode_state
from secfed.wire.layout import Rounding

_STUDIES: Final = "studies"


@dataclass(frozen=True)
class Terms:
    """A study as every hospital derives it, before anything of its own comes in.

    Attributes:
        study: the study.
        algorithm: its plan, with noise.
        sites: the hospitals that it names, sorted.
    """

    study: Study
    algorithm: Algorithm
    sites: tuple[str, ...]

    @classmethod
    def of(cls, study: Study, roster: Roster, own: str) -> Terms:
        """Build a study and check that it is among members of the pinned roster.

        Raises:
            ConfigError: pieces that do not fit together, or a ``model.start`` without its digest.
            PolicyRefused: it names strangers, or not this site.
        """
        sites = tuple(sorted(build_data(study).sites))
        strangers = [site for site in sites if site not in roster.sites]
        if strangers:
            raise PolicyRefused(
                f"study {study.name!r} names sites that are not in the roster pinned here: "
                + ", ".join(strangers[:10]),
                remedy="the study centre admits them first, and every site pins the new roster",
                keys=("roster",),
            )
        if own not in sites:
            raise PolicyRefused(
                f"study {study.name!r} does not name this site",
                remedy="ask the study centre",
                keys=("roster",),
            )
        pinned_model(study)
        return cls(study, with_privacy(study, build(study), len(sites)), sites)

    @cached_property
    def protection(self) -> Protection:
        """The study's, derived from the study alone."""
        return make_protection(self.study.protection, self.algorithm, self.study.rounds, self.sites)

    @property
    def study_id(self) -> str:
        """Name and digest."""
        return study_id(self.study)

    def limits(self, policy: SiteLimits) -> SiteLimits:
        """What the site enforces in every attempt: the stricter of its policy and the study."""
        study = limits_of(self.study, len(self.sites))
        both = [limit for limit in (study.colluders, policy.colluders) if limit is not None]
        return replace(
            policy,
            min_cohort=max(policy.min_cohort, study.min_cohort),
            min_threshold=max(policy.min_threshold, study.min_threshold),
            colluders=max(both, default=None),
            require_privacy=policy.require_privacy or study.require_privacy,
        )


@dataclass
class SiteStudy:
    """A running study at a hospital. Make one with :func:`open_site_study`.

    Attributes:
        site: answers frames.
        terms: the study.
        memory: of the running exchange.
        transcript: what this site took part in.
        privacy: budgets and ledger; None for a study without.
        folder: the study's.
    """

    site: Site
    terms: Terms
    memory: AttemptStore
    transcript: Transcript
    privacy: SitePrivacy | None
    folder: Path
    _journal: Journal = field(repr=False)
    _log: Log = field(repr=False)
    _entries: Callable[[], tuple[Entry, ...]] = field(repr=False)

    def close(self) -> None:
        """Close files and worker processes; everything can be opened again."""
        self.site.close()
        self.transcript.close()
        self._journal.close()

    def finish(self) -> None:
        """The study is over: write the model if only sites know it, and destroy what was kept for the study.

        Under encrypted protection nobody but the sites can read the model. The file is written, then named in
        the transcript, and only then the state that it came from is destroyed.
        """
        replica, sums = self.site.replica, self.site.sums
        # Finished before, it has taken no sum since: the model that is there, or was named, was trained.
        if replica is not None and (sums or not self._has_model()):
            data, rounds = encode_state(replica.model()), self.terms.study.rounds
            failpoint("site: before model written")
            write_durably(self.folder / MODEL_FILE, data)
            failpoint("site: after model written")
            metrics = metrics_digest(replica.metrics(), rounds)
            record = ModelRecord.of(self._entries(), data, rounds=rounds, metrics=metrics, sums=sums)
            self._log.append(MODEL, record.to_body())
            failpoint("site: after model recorded")
        self.memory.forget()

    def _has_model(self) -> bool:
        return (self.folder / MODEL_FILE).exists() or any(entry.kind == MODEL for entry in self._entries())


def _take_model(folder: Path, log: Log, entries: Callable[[], tuple[Entry, ...]], final: FinalModel) -> None:
    """Keep a finished model that the aggregator signed: the file first, then its name in the transcript.

    Raises:
        InconsistentView: the transcript names another one (refusal 41).
    """
    record = record_of(final)
    if any(e.body.get("sha256") != record.sha256.hex() for e in entries() if e.kind == MODEL):
        raise Refusal.MODEL_MISMATCH.refuse("this site was given another one")
    failpoint("site: before model written")
    write_durably(folder / MODEL_FILE, final.model)
    failpoint("site: after model written")
    log.append(MODEL, record.to_body())
    failpoint("site: after model recorded")


def study_folder(state: Path, identifier: str) -> Path:
    """Where a study's files are; ``identifier`` is its :func:`~secfed.study.limits.study_id`."""
    return state / _STUDIES / identifier[: -(64 - 16)]  # the name and 16 digits of the digest


def open_site_study(
    terms: Terms,
    *,
    identity: Identity,
    roster: Roster,
    state: Path,
    program: Callable[[Terms, AttemptStore, SitePrivacy | None], SiteProgram],
    limits: SiteLimits,
    dataset: str,
    budgets: Sequence[Budget],
    simulated: bool = False,
    told: Callable[[str, Mapping[str, object]], None] = lambda _kind, _body: None,
    alarm: Alarm = lambda _failure: None,
) -> SiteStudy:
    """Open a study at this hospital, and go on where a crash interrupted it.

    Args:
        terms: the study.
        identity: the site's key.
        roster: the pinned roster.
        state: the site's state folder; one process at a time.
        program: makes the local work.
        limits: the policy's.
        dataset: name of the data set, for its ledger.
        budgets: of that data set.
        simulated: take rounding and noise from the study's seed, as ``secfed simulate`` does. Tests only.
        told: told of every new entry of the transcript.
        alarm: told where local work failed and added zeros; see :class:`secfed.site.session.Site`.

    Raises:
        SecfedError: a file that cannot be read or was changed, or a program that cannot be made.

    Security: with ``simulated`` anybody who knows the study can remove the noise and undo the rounding.
    """
    study, folder = terms.study, study_folder(state, terms.study_id)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(folder, error) from None
    with ExitStack() as opened:  # closed again where anything below fails
        journal = Journal(state / "journal.sqlite")
        opened.callback(journal.close)
        settings, ledger = study.privacy, None
        if settings is not None:
            ledger = ReleaseLedger(
                ledger_file(state, dataset),
                identity,
                dataset,
                budgets or [Budget(None, settings.delta, protects=settings.budgeted)],
                accountant=accountant(settings.accountant),
                recorded=recorded_heads(state),
            )
            ledger.check_study(terms.study_id, first_payment(terms.algorithm, study.rounds))
        files = SignedFiles(folder / "work", identity, terms.study_id)
        memory = AttemptStore(
            files, journal, terms.study_id, began=(lambda _release: None) if ledger is None else ledger.enter
        )
        seeded = partial(_seeded, study.seed, identity.name)
        privacy = None
        if settings is not None and ledger is not None:
            privacy = SitePrivacy(
                settings,
                terms.algorithm,
                ledger,
                study=terms.study_id,
                seed=study.seed,
                random=partial(seeded, "local steps") if simulated else memory.random,
                noise_key=partial(_seeded_key, seeded) if simulated else memory.noise_key,
            )
        path = folder / TRANSCRIPT_FILE
        transcript = Transcript(identity, study=terms.study_id, roster_digest=roster.digest, sink=path)
        opened.callback(transcript.close)
        entries = partial(verify_file, path, identity.public_bytes, TRANSCRIPT, owner=identity.name)
        log = IdempotentLog(transcript, entries(), told)
        log.append(SETTINGS, study.settings(len(terms.sites)))
        start = None
        if study.model.start is not None:
            start = partial(find_initial_model, study, terms.algorithm, state)
        arguments: dict[str, Any] = {
            "identity": identity,
            "roster": roster,
            "study": terms.study_id,
            "algorithm": terms.algorithm,
            "program": program(terms, memory, privacy),
            "protection": terms.protection,
            "start": start,
            "journal": journal,
            "log": log,
            "rounding": partial(_rounding, study.seed, identity.name) if simulated else memory.rounding,
            "limits": terms.limits(limits),
            "privacy": privacy,
            "memory": memory,
            "sites": tuple(name for name in roster.sites if name in terms.sites),
            "take_model": partial(_take_model, folder, log, entries),
            "begins_with": pinned_model(study),
            "broadcast_bound": study.protection.broadcast_bound,
            "alarm": alarm,
        }
        site = make_site(**arguments)
        site.resume()
        opened.pop_all()
    return SiteStudy(site, terms, memory, transcript, privacy, folder, journal, log, entries)


def recorded_heads(state: Path) -> Iterator[Recorded]:
    """What the transcripts of all studies recorded of the site's ledgers."""
    for path in sorted(state.glob(f"{_STUDIES}/*/{TRANSCRIPT_FILE}")):
        yield from read_recorded(path)


def _rounding(seed: int, site: str, number: int, index: int) -> Rounding:
    return rounding_stream_for_simulation(seed, site, str(number), str(index))


def _seeded(seed: int, site: str, purpose: str, number: int, exchange: str) -> SecureRandom:
    return SecureRandom.for_simulation(seed, purpose, site, number, exchange)


def _seeded_key(seeded: Callable[[str, int, str], SecureRandom], number: int, exchange: str) -> bytes:
    return seeded("noise in the sum", number, exchange).words(4).tobytes()
