"""A hospital's folder: its keys, certificate, pinned roster, settings and policy.

site.toml            settings of the agent
policy.toml          what studies may do here
identity.key         signs everything in the protocol; never leaves, never renewed
tls.key, tls.pem     open the connection; renewed every few weeks
request.json         for the study centre
consortium.json      consortium, CA and aggregator, from the first reply
pinned-roster.json   whom this site computes with
pinned-rosters/      every roster that was ever pinned, for audits of older records
approvals.json       what was decided about studies, and which the policy let in
state-id.json        which state folder belongs to this site (admission/memory.py)
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import Final, Literal

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from pydantic import Field

from secfed.config.schema import checked
from secfed.crypto.identity import Identity, Roster
from secfed.deploy.enrolment import rosters
from secfed.deploy.enrolment.messages import AggregatorFacts, Reply, Request
from secfed.deploy.enrolment.site_settings import SETTINGS_FILE, SiteSettings, load_settings, template
from secfed.deploy.enrolment.training_user import TrainingUser
from secfed.deploy.pki import certificate_checks, key_files
from secfed.deploy.pki.names import check_site_name
from secfed.deploy.pki.tls_folder import TlsFiles, TlsFolder
from secfed.deploy.policy.policy_file import PolicyFile
from secfed.errors import ConfigError, RosterError
from secfed.records.roster_file import begun_with
from secfed.runs.run_folder import TRANSCRIPT_FILE, study_folder
from secfed.storage import private_files

STUDY_ID: Final = re.compile(r"([a-z0-9][a-z0-9-]{0,62})-([0-9a-f]{64})")  # name and digest of a study

_REQUEST_FILE: Final = "request.json"
_IDENTITY_FILE: Final = "identity.key"
_POLICY_FILE: Final = "policy.toml"


class _ConsortiumFile(AggregatorFacts):
    version: Literal[1] = Field(description="1")
    consortium: str = Field(description="the consortium's name")
    ca: str = Field(description="a certificate in PEM")


class SiteFolder:
    """An existing folder of a site; :meth:`create` makes one."""

    def __init__(self, folder: Path) -> None:
        self.request_path = folder / _REQUEST_FILE  # what the study centre gets
        if not self.request_path.is_file() or not (folder / SETTINGS_FILE).is_file():
            raise ConfigError(
                f"{folder}: not the folder of a site",
                remedy="name it with --dir, or make one with: secfed site init",
            )
        private_files.check_private(folder)
        self.folder = folder
        self.settings: SiteSettings = load_settings(folder / SETTINGS_FILE)
        self.name = self.settings.site.name
        self.tls = TlsFolder(folder)
        self.policy = PolicyFile(folder / _POLICY_FILE)
        self.policy_path = self.policy.path
        self.approvals_path = folder / "approvals.json"
        self.state = folder / self.settings.agent.state  # journals, ledgers and transcripts
        self._identity_path = folder / _IDENTITY_FILE
        self._consortium_path = folder / "consortium.json"
        self._ca_path = folder / "ca.pem"
        self._pinned_path = folder / rosters.PINNED_FILE

    @classmethod
    def create(cls, folder: Path, name: str, *, now: datetime, passphrase: str | None = None) -> SiteFolder:
        """Make a site's folder: keys, settings, a policy that permits nothing yet, and the request."""
        check_site_name(name)
        if passphrase is not None:
            key_files.check_passphrase(passphrase)
        private_files.make_private_folder(folder)
        identity_key = Ed25519PrivateKey.generate()
        key_files.create_key(folder / _IDENTITY_FILE, identity_key, passphrase)
        tls_key = TlsFolder(folder).new_key(passphrase)
        private_files.create(folder / SETTINGS_FILE, template(name).encode())
        policy = resources.files("secfed.deploy.policy").joinpath(_POLICY_FILE).read_bytes()
        private_files.create(folder / _POLICY_FILE, policy)  # it permits nothing yet
        identity = Identity.from_seed(name, identity_key.private_bytes_raw())
        # Last: a folder without it was never finished, and is not taken for one.
        request = private_files.to_json(Request.sign(identity, tls_key, now))
        private_files.create(folder / _REQUEST_FILE, request, mode=0o644)
        return cls(folder)

    @property
    def flower_socket(self) -> Path | None:
        """Where studies come through Flower; None where the agent dials the aggregator."""
        named = self.settings.flower.socket
        return None if named is None else self.folder / named

    @property
    def key_paths(self) -> tuple[Path, ...]:
        """The private keys that are there."""
        return (self._identity_path, *self.tls.key_paths)

    def training_user(self) -> TrainingUser | None:
        """The account that training runs in; None for the agent's own."""
        name = self.settings.training.user
        return None if name is None else TrainingUser.named(name, (self.folder, *self.key_paths))

    def request(self) -> Request:
        """The newest request: the site's public keys."""
        path = self.request_path
        request = Request.verified(private_files.read_json(path, "a request"), str(path))
        if request.site != self.name:
            raise ConfigError(
                f"{self.folder / SETTINGS_FILE}: site.name: {self.name!r} is not the name that was enrolled",
                remedy=f'set it back to "{request.site}"; another name needs a new folder',
            )
        return request

    def identity(self, passphrase: str | None) -> Identity:
        """The site's signing key."""
        path = self._identity_path
        identity = key_files.read_identity(path, self.name, passphrase)
        if identity.public_bytes != self.request().identity_key:
            raise ConfigError(f"{path}: not the key that was enrolled", remedy="restore it from your backup")
        return identity

    def tls_material(self, passphrase: str | None) -> TlsFiles:
        """What the agent opens its connection with."""
        return self.tls.load(self._ca_path, passphrase)

    def untimely(self, now: datetime) -> str:
        """What is wrong with the site's own certificates by this machine's clock; empty if nothing is."""
        own, joined = self.tls.certificate(), self.consortium()
        try:
            if own is not None and joined is not None:
                certificate_checks.check_issued(own, joined[1], now)
        except ConfigError as error:
            return str(error)
        return ""

    def consortium(self) -> tuple[str, x509.Certificate, AggregatorFacts] | None:
        """Consortium, CA and aggregator; None before the first reply."""
        path = self._consortium_path
        if not path.exists():
            return None
        file = checked(_ConsortiumFile, private_files.read_json(path, "a consortium"), str(path))
        ca = certificate_checks.load(file.ca, f"{path}: ca")
        return file.consortium, ca, file.aggregator

    def address(self) -> str:
        """Where to dial: as ``site.toml`` says, or else the reply."""
        if self.settings.aggregator.address is not None:
            return self.settings.aggregator.address
        known = self.consortium()
        if known is None:
            raise ConfigError(f"{self.folder}: not joined yet", remedy="run: secfed site join REPLY")
        return known[2].address

    def renew(self, *, now: datetime, passphrase: str | None) -> Path:
        """Make a new request: same identity, new TLS key. The old certificate works until the reply is in."""
        before = self.request()
        identity = self.identity(passphrase)
        tls_key = self.tls.new_key(passphrase)
        # The study centre takes newer requests only, and this machine's clock may have been set back.
        made = max(now, datetime.fromtimestamp(before.made_s + 1, UTC))
        content = Request.sign(identity, tls_key, made)
        private_files.replace(self.request_path, private_files.to_json(content), mode=0o644)
        return self.request_path

    def check_reply(self, content: dict[str, object], where: str, now: datetime) -> Reply:
        """Check a reply against everything that this site knows already."""
        reply = Reply.verified(content, where, now)
        if reply.site != self.name:
            raise ConfigError(
                f"{where}: is for site {reply.site!r}, not {self.name!r}", remedy="ask for this site's reply"
            )
        known = self.consortium()
        if known is not None and certificate_checks.der(known[1]) != certificate_checks.der(reply.ca):
            raise ConfigError(
                f"{where}: is from another consortium, or from a new CA of {known[0]!r}",
                remedy="ask the study centre; a new consortium needs a new folder",
            )
        pinned = self.pinned()
        keys = {known[2].identity_key} if known is not None else set()
        keys |= {pinned.roster.aggregator} if pinned is not None else set()
        if keys - {reply.aggregator.identity_key}:
            raise RosterError(
                f"{where}: names another aggregator than the one known here",
                remedy="do not use it; ask the study centre",
            )
        current = self.tls.certificate()
        if current is not None and reply.certificate.not_valid_after_utc < current.not_valid_after_utc:
            raise ConfigError(f"{where}: is older than the certificate in use", remedy="ask for a new reply")
        return reply

    def join(self, reply: Reply, *, passphrase: str | None) -> None:
        """Install a reply that :meth:`check_reply` accepted."""
        self.tls.check_new(reply.certificate, passphrase)
        ca = certificate_checks.to_pem(reply.ca)
        content = {"version": 1, "consortium": reply.consortium, "ca": ca, **reply.aggregator.model_dump()}
        private_files.replace(self._consortium_path, private_files.to_json(content), mode=0o644)
        private_files.replace(self._ca_path, ca.encode(), mode=0o644)
        self.tls.install(reply.certificate, passphrase)

    def pinned(self) -> rosters.Pinned | None:
        """The pinned roster; None if none was ever pinned."""
        return rosters.read_pinned(self._pinned_path)

    def pinned_or_none(self) -> rosters.Pinned | None:
        """Like :meth:`pinned`, and None for a damaged file: for the question of what to pin instead."""
        try:
            return self.pinned()
        except RosterError:
            return None

    def roster(self) -> Roster:
        """The pinned roster, which is what the agent computes with."""
        pinned = self.pinned()
        if pinned is None:  # a step that is still to be done, not a roster that cannot be believed
            joined = self._consortium_path.exists()
            remedy = "secfed site trust ROSTER" if joined else "secfed site join REPLY --roster ROSTER"
            raise ConfigError(f"{self.folder}: no roster is pinned", remedy=f"run: {remedy}")
        rosters.check_own(pinned.roster, self.name, self.request().identity_key)
        return pinned.roster

    def roster_of(self, study: str, pinned: Roster) -> Roster:
        """The roster of a study, by its id: that with which it began here, else the pinned one."""
        if not STUDY_ID.fullmatch(study):  # it names a folder
            return pinned
        transcript = study_folder(self.state, study) / TRANSCRIPT_FILE
        return begun_with(transcript, pinned, self._pinned_path)

    def check_roster(self, roster: Roster) -> None:
        """Check a roster before an administrator is asked to pin it."""
        rosters.check_own(roster, self.name, self.request().identity_key)
        known = self.consortium()
        if known is not None and known[2].identity_key != roster.aggregator:
            raise RosterError(
                "the roster names another aggregator than the reply did",
                remedy="do not pin it; ask the study centre",
            )

    def trust(self, roster: Roster, now: datetime) -> None:
        """Pin a roster. Security: the administrator has compared its digest before."""
        self.check_roster(roster)
        rosters.pin(self._pinned_path, roster, now)
