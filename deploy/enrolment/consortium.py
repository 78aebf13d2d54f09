"""The study centre's folder: the CA, the list of sites, and everything the aggregator needs.

consortium.json         name, hosts, port, lifetime of certificates
ca.pem                  the CA's certificate
ca/ca.key               the CA's private key; needed to admit and renew only, so it can be kept offline
members.json            sites and their keys; the roster is derived from it
roster.json             what every site pins; written with the first site
replies/SITE.json       what a site gets
paused/STUDY            while it is there, the aggregator does not serve the study of this name
aggregator/             identity.key, tls.key, tls.pem: what `secfed aggregate` signs and serves with
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Final, Literal

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from pydantic import Field

from secfed.config.schema import checked
from secfed.crypto.identity import Identity, Roster
from secfed.deploy.enrolment.members import MEMBERS_FILE, Member, Members, refuse_owned
from secfed.deploy.enrolment.messages import AggregatorFacts, Reply, Request
from secfed.deploy.enrolment.rosters import keep_roster, save_roster
from secfed.deploy.pki import certificate_checks, certificates, key_files
from secfed.deploy.pki.certificates import Authority
from secfed.deploy.pki.names import AGGREGATOR, check_consortium_name, check_host
from secfed.deploy.pki.tls_folder import TlsFiles, TlsFolder
from secfed.errors import ConfigError
from secfed.records.roster_file import ROSTER_FILE
from secfed.storage import private_files

DEFAULT_PORT: Final = 8443

_FACTS_FILE: Final = "consortium.json"
_CA_FILE: Final = "ca.pem"
STUDY_NAME: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")  # as study.py, which is too heavy to import here


class Facts(AggregatorFacts):
    """``consortium.json``."""

    version: Literal[1] = Field(description="1")
    name: str = Field(description="the consortium's name")
    certificate_days: int = Field(ge=1, le=certificates.MAX_DAYS, description="days a certificate lives")


class Consortium:
    """An existing folder of a study centre; :meth:`create` founds one."""

    def __init__(self, folder: Path) -> None:
        if not (folder / _FACTS_FILE).is_file():
            raise ConfigError(
                f"{folder}: not the folder of a consortium",
                remedy="name the folder that consortium init made, or found one with: secfed consortium init",
            )
        private_files.check_private(folder)
        self.folder = folder
        content = private_files.read_json(folder / _FACTS_FILE, "a consortium")
        self.facts = checked(Facts, content, str(folder / _FACTS_FILE))
        self.tls = TlsFolder(folder / AGGREGATOR)
        self.ca_key_path = folder / "ca" / "ca.key"  # may be elsewhere when nobody is being admitted
        self.ca_path = folder / _CA_FILE
        self.roster_path = folder / ROSTER_FILE
        self._paused_folder = folder / "paused"
        self._identity_path = folder / AGGREGATOR / "identity.key"

    @classmethod
    def create(
        cls,
        folder: Path,
        name: str,
        hosts: Sequence[str],
        *,
        now: datetime,
        port: int = DEFAULT_PORT,
        certificate_days: int = certificates.DEFAULT_DAYS,
        passphrase: str | None = None,
    ) -> Consortium:
        """Found a consortium: CA, the aggregator's identity and certificate, and no sites.

        ``folder`` is new or empty; ``hosts`` are every name and address that the aggregator may ever have,
        of which the first is dialled; ``passphrase`` encrypts all private keys.
        """
        check_consortium_name(name)
        known = tuple(dict.fromkeys(check_host(host) for host in hosts))
        identity_key = Ed25519PrivateKey.generate()
        facts = {
            "version": 1,
            "name": name,
            "hosts": list(known),
            "port": port,
            "certificate_days": certificate_days,
            "aggregator_key": identity_key.public_key().public_bytes_raw().hex(),
        }
        checked(Facts, facts, "consortium")
        private_files.make_private_folder(folder)
        for inside in ("ca", "replies", AGGREGATOR):
            (folder / inside).mkdir(mode=0o700)
        ca_key = key_files.new_tls_key()
        authority = Authority.create(ca_key, name, known, now)
        key_files.create_key(folder / "ca" / "ca.key", ca_key, passphrase)
        private_files.create(
            folder / _CA_FILE, certificate_checks.to_pem(authority.certificate).encode(), mode=0o644
        )
        key_files.create_key(folder / AGGREGATOR / "identity.key", identity_key, passphrase)
        tls = TlsFolder(folder / AGGREGATOR)
        tls_key = tls.new_key(passphrase)
        tls.install(
            authority.issue_aggregator(known, tls_key.public_key(), now, certificate_days), passphrase
        )
        Members().save(folder / MEMBERS_FILE)
        # Last: a folder without it was never finished, and is not taken for one.
        private_files.create(folder / _FACTS_FILE, private_files.to_json(facts), mode=0o644)
        return cls(folder)

    @property
    def aggregator(self) -> AggregatorFacts:
        """What sites are told about the aggregator."""
        return self.facts.aggregator

    @property
    def aggregator_key_paths(self) -> tuple[Path, ...]:
        """Private keys that `secfed aggregate` reads."""
        return (self._identity_path, *self.tls.key_paths)

    def ca(self) -> x509.Certificate:
        """The CA's certificate."""
        return certificate_checks.load(private_files.read(self.ca_path, "a certificate"), str(self.ca_path))

    def members(self) -> Members:
        """Everyone who is or was enrolled."""
        return Members.load(self.folder / MEMBERS_FILE)

    def roster(self) -> Roster | None:
        """The roster of now; None while no site is enrolled."""
        return self.members().roster(self.aggregator.identity_key)

    def aggregator_identity(self, passphrase: str | None) -> Identity:
        """The aggregator's signing key."""
        identity = key_files.read_identity(self._identity_path, AGGREGATOR, passphrase)
        if identity.public_bytes != self.aggregator.identity_key:
            raise ConfigError(
                f"{self._identity_path}: not the key that sites know", remedy="restore it from your backup"
            )
        return identity

    def aggregator_tls(self, passphrase: str | None, now: datetime) -> TlsFiles:
        """What the aggregator serves TLS with."""
        certificate = self.tls.certificate()
        if certificate is not None and (expired := certificate_checks.expired(certificate, now)):
            raise ConfigError(
                f"the aggregator's certificate {expired}",
                remedy="if that clock is right, run: secfed consortium renew aggregator; if not, set it",
            )
        return self.tls.load(self.ca_path, passphrase)

    def check(self, request: Request) -> None:
        """Refuse a request that cannot be admitted, before a person is asked about it."""
        self.members().check_new(request, self.aggregator.identity_key)
        self._check_against_own_keys(request)

    def admit(self, request: Request, *, now: datetime, passphrase: str | None) -> Path:
        """Enrol a site. Security: a person has compared the request's fingerprint before."""
        authority = self._authority(passphrase)
        with private_files.locked(self.folder):
            self.check(request)
            certificate = self._certify(authority, request, now)
            member = Member(request.site, request.identity_key, certificate, request.made_s)
            self._save(self.members().with_member(member))
            return self._write_reply(authority, member)

    def renew_site(
        self, site: str, request: Request | None, *, now: datetime, passphrase: str | None
    ) -> Path:
        """Issue a new certificate to an enrolled site; the roster stays. None keeps its TLS key."""
        authority = self._authority(passphrase)
        with private_files.locked(self.folder):
            members = self.members()
            member = members.member(site)
            if request is None:
                made_s, public = member.requested_s, certificate_checks.p256_of(member.certificate)
                request = Request(site, member.identity_key, public, made_s)
            elif request.site != site:
                raise ConfigError(
                    f"the request is from {request.site!r}, not {site!r}", remedy="check the file"
                )
            else:
                members.check_renewal(request)
                self._check_against_own_keys(request)
            certificate = self._certify(authority, request, now)
            member = replace(member, certificate=certificate, requested_s=request.made_s)
            self._save(members.with_member(member))
            return self._write_reply(authority, member)

    def renew_aggregator(self, *, now: datetime, passphrase: str | None) -> x509.Certificate:
        """Issue the aggregator a new certificate, with a new key, and use it from its next start."""
        authority = self._authority(passphrase)
        with private_files.locked(self.folder):
            public = self.tls.new_key(passphrase).public_key()
            days = self.facts.certificate_days
            certificate = authority.issue_aggregator(self.facts.hosts, public, now, days)
            self.tls.install(certificate, passphrase)
        return certificate

    def remove(self, site: str, *, now: datetime) -> None:
        """Take a site out of the roster. Its certificate then opens nothing at the aggregator."""
        with private_files.locked(self.folder):
            self._save(self.members().without(site, now))
            (self.folder / "replies" / f"{site}.json").unlink(missing_ok=True)

    def pause(self, study: str) -> None:
        """Serve this study no more, from its next exchange on, until :meth:`resume`."""
        if not STUDY_NAME.fullmatch(study):
            raise ConfigError(
                f"{study!r} is not the name of a study", remedy="names have 1 to 63 of a-z, 0-9 and -"
            )
        private_files.make_folder(self._paused_folder)
        private_files.replace(self._paused_folder / study, b"")

    def resume(self, study: str) -> None:
        """Serve a paused study again; ``ConfigError`` where it is not paused."""
        if study not in self.paused():
            raise ConfigError(
                f"{study!r} is not paused", remedy=f"paused are: {', '.join(self.paused()) or 'none'}"
            )
        (self._paused_folder / study).unlink(missing_ok=True)

    def paused(self) -> tuple[str, ...]:
        """Names of the studies that are paused."""
        if not self._paused_folder.is_dir():
            return ()
        return tuple(sorted(path.name for path in self._paused_folder.iterdir()))

    def restore_roster_file(self) -> None:
        """Write the roster file again, for a crash may have left the one before."""
        with private_files.locked(self.folder):
            save_roster(self.roster_path, self.roster())

    def _save(self, members: Members) -> None:
        # The list first: the roster can always be derived from it again.
        before = self.roster() if (self.folder / MEMBERS_FILE).exists() else None
        members.save(self.folder / MEMBERS_FILE)
        roster = members.roster(self.aggregator.identity_key)
        for kept in filter(None, (before, roster)):
            keep_roster(self.roster_path, kept)
        save_roster(self.roster_path, roster)

    def _certify(self, authority: Authority, request: Request, now: datetime) -> x509.Certificate:
        return authority.issue_site(request.site, request.tls_key, now, self.facts.certificate_days)

    def _write_reply(self, authority: Authority, member: Member) -> Path:
        reply = Reply(
            self.facts.name, member.site, member.certificate, authority.certificate, self.aggregator
        )
        path = self.folder / "replies" / f"{member.site}.json"
        private_files.replace(
            path, private_files.to_json(reply.to_content(authority.sign(reply.body))), mode=0o644
        )
        return path

    def _authority(self, passphrase: str | None) -> Authority:
        if not self.ca_key_path.exists():
            raise ConfigError(
                f"{self.ca_key_path}: is not there", remedy="bring the CA's key back from where it is kept"
            )
        ca, ca_key = self.ca(), key_files.read_tls_key(self.ca_key_path, passphrase)
        if certificate_checks.public_der(ca) != certificate_checks.public_der(ca_key):
            raise ConfigError(
                f"{self.ca_key_path}: not the key of {_CA_FILE}", remedy="restore both from your backup"
            )
        return Authority(ca, ca_key)

    def _check_against_own_keys(self, request: Request) -> None:
        own = (certificate for certificate in (self.ca(), self.tls.certificate()) if certificate is not None)
        owners = dict.fromkeys(map(certificate_checks.public_der, own), "a TLS key of the study centre")
        refuse_owned(request, certificate_checks.public_der(request.tls_key), owners)
