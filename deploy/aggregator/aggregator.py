"""``secfed aggregate``: one study, served to the sites of a consortium until it is finished."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final

from secfed import __version__
from secfed.crypto.identity import Identity, Roster
from secfed.deploy.admission.offered import plan_digest
from secfed.deploy.aggregator.measured_transport import MeasuredTransport, SiteVersions, Tell
from secfed.deploy.aggregator.run import CentralRun
from secfed.deploy.aggregator.run_watch import PeopleTold
from secfed.deploy.aggregator.study import CentralStudy
from secfed.deploy.enrolment.consortium import Consortium
from secfed.deploy.transport.flower.server import FlowerServer
from secfed.deploy.transport.frame_sizes import FrameCaps
from secfed.deploy.transport.grpc.server import LinkServer
from secfed.deploy.transport.limits import ServerLimits
from secfed.deploy.transport.signals import Stopper
from secfed.deploy.transport.study_server import Offer, Presence, SiteReply, StudyServer
from secfed.errors import ConfigError, DiskFull, RosterError, RoundAborted, StudyStopped
from secfed.protection.interface import SiteId
from secfed.records.roster_file import ROSTER_FILE, begun_with, claimed_digest, read_roster
from secfed.records.transcript import Log
from secfed.runs.run_folder import TRANSCRIPT_FILE
from secfed.runs.run_report import Observer, RunReport
from secfed.study.study import Study

_RESULT_S: Final = 60.0
_FLOWER_RESULT_S: Final = 300.0  # a message takes many seconds, and a hospital's transcript needs the result
_LAST_WORD_S: Final = 15.0  # in which an agent that asks again and again has asked
_SOFTWARE: Final = f"secfed {__version__}"


@dataclass(frozen=True)
class Service:
    """How a study is served."""

    listen: str | None = None  # host:port; None: every address, at the consortium's port
    quorum: int | None = (
        None  # sites that must be there before an exchange begins; None: as many as must answer
    )
    sites: Sequence[SiteId] | None = None  # ask only these
    silent_s: float = 60.0  # a site without a sign of life for so long counts as missing
    farewell_s: float = 60.0  # how long sites are given the model and told that the study is finished
    uploads_at_a_time: int | None = None  # large ones, each in memory of its size; None: what fits into 1 GiB
    flower_socket: Path | None = None  # carry messages through Flower, whose app comes here; None: over gRPC
    end: bool = False  # end the study where it is, and bring the sites its model
    another: Callable[[], bool] = lambda: False  # whether another study is served after this one

    def link_limits(self) -> ServerLimits:
        """Limits of the link."""
        host, _, port = (self.listen or "").rpartition(":")
        is_port = port.isascii() and port.isdigit() and int(port) <= 65535
        if self.listen is not None and not (host and is_port):
            # Or gRPC would take another port than the one that was named.
            raise ConfigError(
                f"--listen {self.listen}: is not HOST:PORT with a port up to 65535",
                remedy="write for example 0.0.0.0:8443",
            )
        for option, seconds in (("--silent", self.silent_s), ("--farewell", self.farewell_s)):
            if math.isnan(seconds):  # every site between two calls would be missing
                raise ConfigError(f"{option} nan: is not a number", remedy="leave it out for 60 seconds")
        if self.uploads_at_a_time is not None and self.uploads_at_a_time < 1:
            raise ConfigError(
                f"--uploads-at-a-time {self.uploads_at_a_time}: must be 1 or more",
                remedy="1 needs the least memory; leave it out for as many as fit into 1 GiB",
            )
        if self.flower_socket is not None and (self.listen or self.uploads_at_a_time):
            raise ConfigError(
                "--listen, --uploads-at-a-time: are for gRPC, and --flower-socket was given",
                remedy="leave them out; through Flower one large upload is held at a time",
            )
        return ServerLimits(answers=self.uploads_at_a_time)


class Aggregator:
    """One study at the study centre; ``text`` is its file, and an unfinished run of it in ``out`` is resumed.

    Raises:
        ConfigError: study, consortium and options do not fit together, or a file cannot be used.
        RosterError: no roster, or a site of the study is not in it.
        TranscriptError: the run in ``out`` was changed.
    """

    def __init__(
        self,
        study: Study,
        text: str,
        consortium: Consortium,
        out: Path,
        *,
        passphrase: str | None,
        service: Service,
        observer: Observer,
        tell: Tell,
        stopper: Stopper,
        gives_way: Callable[[float], bool] = lambda _waited_s: False,
    ) -> None:
        limits = service.link_limits()
        self._identity = consortium.aggregator_identity(passphrase)
        now = consortium.roster()
        enrolled = {} if now is None else dict(now.members)
        roster = roster_of_run(out, now, consortium.roster_path, self._identity if service.end else None)
        removed = consortium.members().removed_sites
        self._central = central = CentralStudy(study, roster, service.sites, removed=removed)
        self._quorum = _quorum(central, service.quorum)
        # Where a run only ends, members may be gone, all of them even: they get nothing more.
        present = {site: public for site, public in roster.members if enrolled.get(site) == public}
        central.asked = tuple(site for site in central.asked if site in present)
        self._service, self._observer, self._stopper = service, observer, stopper
        self._gives_way = gives_way
        self._round: Callable[[], int] = lambda: 0
        self._out = out
        caps = FrameCaps.of(central.algorithm, study.rounds, len(roster.sites), central.protection)
        _check_space(out, caps.answer_bytes * len(central.asked))
        plan = plan_digest(study, central.algorithm, central.names, roster)
        offer = Offer(central.id, text.encode(), caps.answer_bytes, roster.digest, plan)
        self._server: StudyServer
        if service.flower_socket is None:
            listen = service.listen or f"0.0.0.0:{consortium.facts.port}"
            tls = consortium.aggregator_tls(passphrase, datetime.now(UTC))
            self._server = LinkServer(listen, tls, present, offer, limits, removed=removed)
        else:
            ttl_s = study.protection.deadline_s
            path, another = service.flower_socket, service.another
            self._server = FlowerServer(path, self._identity, present, offer, ttl_s=ttl_s, another=another)
        self._people = PeopleTold(consortium.folder, study.name, central.id)
        self._versions = SiteVersions(self._server.presence, self._people.hearing(tell), _SOFTWARE)
        self._tell = self._versions.tell

    def run(self) -> RunReport:
        """Serve the study to its end, or raise.

        ``Stopped``: by the operator; ``LinkError``: the address cannot be had; ``StudyStopped``: the next
        rounds could come to no sum, it can be resumed or ended; ``RoundAborted``: not one sum came about;
        ``StudyPaused``: it gave way before an exchange.
        """
        central = self._central
        made = partial(CentralRun, central, self._identity, self._out, self._carrier, self._observer)
        with self._people, closing(made()) as run:
            self._server.start()
            try:
                self._tell(
                    "resumed" if run.resumed else "started",
                    study=central.id,
                    software=_SOFTWARE,
                    roster=central.roster.digest.hex(),
                    address=self._server.address,
                    quorum=self._quorum,
                    reads_sums=central.protection.traits.aggregator_reads_sums,
                )
                try:
                    report = run.run(end=self._service.end)
                except StudyStopped as error:  # the sites are told nothing: it can go on
                    self._tell("stopped", reason=error.message)
                    raise
                except RoundAborted:  # the study is over, without a sum
                    run.record_end(self._say_farewell(b""))
                    raise
                self._tell("finished", out=str(self._out))
                run.record_end(self._say_farewell(run.final_frame))
                return report
            finally:
                self._server.stop()

    def seen(self) -> tuple[int, dict[SiteId, Presence]]:
        """The round, and what the link sees of the hospitals that are asked."""
        presence = self._server.presence()
        return self._round(), {site: presence[site] for site in self._central.asked}

    def _carrier(self, log: Log) -> MeasuredTransport:
        protection = self._central.study.protection
        of_exchange = protection.max_dropouts is not None and self._service.quorum is None
        carrier = MeasuredTransport(
            self._server,
            log,
            self._observer,
            self._tell,
            self._stopper,
            deadline_s=protection.deadline_s,
            quorum=self._quorum,
            needed_of=self._central.threshold if of_exchange else lambda asked: asked,
            silent_s=self._service.silent_s,
            wait_for_result=not protection.traits.aggregator_reads_sums,
            rounds=self._central.study.rounds,
            result_s=_RESULT_S if self._service.flower_socket is None else _FLOWER_RESULT_S,
            after_step=self._versions.look,  # a site that answered has said what it runs
            gives_way=self._gives_way,
        )
        self._round = lambda: carrier.round
        return carrier

    def _say_farewell(self, final: bytes) -> set[SiteId]:
        """Bring the model to the sites and tell them that the study is over, until all know it or time is up.

        Gives the sites that have said that they have the model, which stands in their transcripts then.
        A site that is fetching the model when the time is over is not cut off. One that has failed has the
        whole time to be put right.
        """
        asked = self._central.asked
        asked_as = self._server.finish(dict.fromkeys(asked, final) if final else None)
        end, took = time.monotonic() + self._service.farewell_s, set[SiteId]()
        with self._stopper.waiting():
            while not self._server.informed() >= set(asked):
                self._hear(asked_as, took)
                if time.monotonic() >= end and not self._server.sending():
                    break
                time.sleep(0.1)
            self._hear(asked_as, took)
            self._tell_the_failed()
        self._tell("told", sites=sorted(self._server.informed()), model=sorted(took))
        return took

    def _tell_the_failed(self) -> None:
        """Tell hospitals that could not take the model that the study is over: they destroy its secrets."""
        seen, informed = self._server.presence(), self._server.informed()
        failed = {site for site in self._central.asked if seen[site].declined is not None} - informed
        if not failed:
            return
        self._server.finish()
        end = time.monotonic() + _LAST_WORD_S
        while not self._server.informed() >= failed and time.monotonic() < end:
            time.sleep(0.1)

    def _hear(self, asked_as: bytes, took: set[SiteId]) -> None:
        """What the sites said about the model: an answer to anything else is no sign that one has it."""
        rounds = self._central.study.rounds
        while not self._server.arrivals.empty():
            said = self._server.arrivals.get()
            if isinstance(said, SiteReply):
                said.release()
            if said.request_id != asked_as:
                continue
            if isinstance(said, SiteReply):
                took.add(said.site)
            else:
                reason = said.reason or said.kind
                self._tell("refused", round=rounds, site=said.site, stage="model", reason=reason)


def roster_of_run(out: Path, enrolled: Roster | None, path: Path, ends: Identity | None = None) -> Roster:
    """The roster that the run in ``out`` began with, else the present one, whose file is ``path``.

    ``RosterError``: there is none, or a member of it is no member any more, so no sum can come about: every
    hospital refuses the run as soon as it pins the new roster. Where this aggregator only ``ends`` the run,
    no sum is asked for, and nobody need be left. Who was admitted since is asked by later runs.
    """
    kept = out / ROSTER_FILE
    if (out / TRANSCRIPT_FILE).is_file() and kept.is_file():
        members, earlier = dict(enrolled.members if enrolled else ()), read_roster(kept)
        gone = [site for site, public in earlier.members if members.get(site) != public]
        if gone and ends is not None:
            # The file lies among results: it counts as far as this aggregator's own transcript bears it out.
            begun = claimed_digest(out / TRANSCRIPT_FILE) == earlier.digest.hex()
            if not begun or earlier.aggregator != ends.public_bytes:
                raise RosterError(
                    f"{kept}: it is not the roster that this run began with under this aggregator's key",
                    remedy="put its copy from a backup back",
                )
            return earlier
        if gone:
            raise RosterError(
                f"--out {out}: the run began with {', '.join(gone)}, removed since or given another key; no "
                "hospital that pins the new roster works in it any more",
                remedy="end it with the model it has: the same command with --end, before the hospitals pin "
                "the new roster; or begin the study anew, under another name and without what was removed",
            )
    if enrolled is None:
        raise RosterError("no site is enrolled", remedy="run: secfed consortium admit REQUEST")
    return begun_with(out / TRANSCRIPT_FILE, enrolled, path)


def _check_space(out: Path, needed_bytes: int) -> None:
    """Refuse a disk on which the replies of one exchange do not fit: a run would stop in its first round."""
    there = next(folder for folder in (out.absolute(), *out.absolute().parents) if folder.exists())
    free = shutil.disk_usage(there).free
    if free < needed_bytes:
        raise DiskFull(
            f"--out {out}: {free / 1e6:.0f} MB are free, and the replies of one exchange can be "
            f"{needed_bytes / 1e6:.0f} MB",
            remedy="free space, or name a folder on another disk",
        )


def _quorum(central: CentralStudy, wanted: int | None) -> int:
    rules = central.study.protection
    sites, min_cohort = rules.asked_of(len(central.asked)), rules.min_cohort
    least = max(central.threshold(sites), min_cohort)
    if least > sites:
        raise ConfigError(
            f"--sites: {sites} sites are asked, and {least} must answer", remedy="ask more sites"
        )
    if wanted is None:
        return least
    if not min_cohort <= wanted <= sites:
        raise ConfigError(
            f"--quorum {wanted}: must be from {min_cohort} to {sites}", remedy=f"leave it out for {least}"
        )
    return wanted
