"""The study centre's list of sites: who is in, with which keys, and who was.

One file, replaced as a whole; the roster is derived from it. Keys of removed sites stay on record: a key
that was given up, perhaps because it was stolen, does not come back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Final, Literal, Self

from cryptography import x509
from pydantic import Field

from secfed.config.schema import Strict, checked
from secfed.crypto.identity import MAX_SITES, Roster
from secfed.deploy.enrolment.messages import Request
from secfed.deploy.pki import certificate_checks
from secfed.errors import ConfigError, RosterError
from secfed.storage import private_files

MEMBERS_FILE: Final = "members.json"


class _MemberEntry(Strict):
    identity_key: str = Field(pattern=r"^[0-9a-f]{64}$", description="64 hexadecimal digits")
    certificate: str = Field(description="a certificate in PEM")
    requested_s: int = Field(ge=0, description="seconds since 1970")


class _RemovedEntry(Strict):
    site: str = Field(description="the site's name")
    identity_key: str = Field(pattern=r"^[0-9a-f]{64}$", description="64 hexadecimal digits")
    tls_key: str = Field(pattern=r"^([0-9a-f]{2})+$", description="a public key in DER, hexadecimal")
    removed_s: int = Field(ge=0, description="seconds since 1970")


class _MembersFile(Strict):
    version: Literal[1] = Field(description="1")
    members: dict[str, _MemberEntry] = Field(description="a table of sites")
    removed: tuple[_RemovedEntry, ...] = Field(description="an array of removed sites")


@dataclass(frozen=True)
class Member:
    """An enrolled site."""

    site: str
    identity_key: bytes
    certificate: x509.Certificate
    requested_s: int

    @property
    def tls_key(self) -> bytes:
        """Public, in DER."""
        return certificate_checks.public_der(self.certificate)


@dataclass(frozen=True)
class Members:
    """Everyone who is or was enrolled."""

    current: Mapping[str, Member] = field(default_factory=dict)
    removed: tuple[_RemovedEntry, ...] = ()

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read the list."""
        file = checked(_MembersFile, private_files.read_json(path, "a list of members"), str(path))
        current = {
            site: Member(
                site,
                bytes.fromhex(entry.identity_key),
                certificate_checks.load(entry.certificate, f"{path}: {site}"),
                entry.requested_s,
            )
            for site, entry in sorted(file.members.items())
        }
        return cls(current, file.removed)

    def save(self, path: Path) -> None:
        """Write the list, whole or not at all."""
        members = {
            member.site: {
                "identity_key": member.identity_key.hex(),
                "certificate": certificate_checks.to_pem(member.certificate),
                "requested_s": member.requested_s,
            }
            for member in self.current.values()
        }
        removed = [entry.model_dump() for entry in self.removed]
        data = private_files.to_json({"version": 1, "members": members, "removed": removed})
        if len(data) > private_files.MAX_BYTES:
            raise ConfigError(
                f"{path}: the list would be {len(data)} bytes, above {private_files.MAX_BYTES}",
                remedy="nothing was changed; remove sites that have left, or found a new consortium",
            )
        private_files.replace(path, data)

    @property
    def removed_sites(self) -> frozenset[str]:
        """Names of sites that were members and are none."""
        return frozenset(entry.site for entry in self.removed) - set(self.current)

    def roster(self, aggregator_key: bytes) -> Roster | None:
        """The roster of these sites; None while there is none."""
        if not self.current:
            return None
        members = sorted((member.site, member.identity_key) for member in self.current.values())
        return Roster(aggregator_key, tuple(members))

    def check_new(self, request: Request, aggregator_key: bytes) -> None:
        """Refuse a name or key that is, or was, somebody's."""
        if request.site in self.current:
            raise RosterError(
                f"site {request.site!r} is enrolled already",
                remedy=f"to renew its certificate: secfed consortium renew {request.site}",
            )
        if len(self.current) >= MAX_SITES:
            raise RosterError(f"the consortium has {MAX_SITES} sites already", remedy="remove one first")
        removed = (bytes.fromhex(entry.identity_key) for entry in self.removed)
        owners = dict.fromkeys(removed, "an identity key of a removed site")
        for member in self.current.values():
            owners[member.identity_key] = f"the identity key of {member.site!r}"
        owners[aggregator_key] = "the aggregator's identity key"
        refuse_owned(request, request.identity_key, owners)
        self._check_tls_key(request)

    def check_renewal(self, request: Request) -> None:
        """Refuse a renewal that is not from the enrolled site, or not newer than the last."""
        member = self.member(request.site)
        if request.identity_key != member.identity_key:
            raise RosterError(
                f"the request is signed with another identity key than that of {request.site!r}",
                remedy="if the site has lost its key, remove it and admit it again",
            )
        if request.made_s <= member.requested_s:
            raise RosterError(
                f"the request is not newer than the last one of {request.site!r}",
                remedy="ask the site to run: secfed site renew",
            )
        self._check_tls_key(request)

    def _check_tls_key(self, request: Request) -> None:
        removed = (bytes.fromhex(entry.tls_key) for entry in self.removed)
        owners = dict.fromkeys(removed, "a TLS key of a removed site")
        for member in self.current.values():
            if member.site != request.site:
                owners[member.tls_key] = f"the TLS key of {member.site!r}"
        refuse_owned(request, certificate_checks.public_der(request.tls_key), owners)

    def member(self, site: str) -> Member:
        """An enrolled site."""
        if site not in self.current:
            known = ", ".join(self.current) or "no site yet"
            raise RosterError(f"site {site!r} is not enrolled", remedy=f"enrolled: {known}")
        return self.current[site]

    def with_member(self, member: Member) -> Members:
        """With this site added, or its entry replaced."""
        return Members({**self.current, member.site: member}, self.removed)

    def without(self, site: str, now: datetime) -> Members:
        """With this site moved to the removed ones."""
        gone = self.member(site)
        entry = _RemovedEntry(
            site=site,
            identity_key=gone.identity_key.hex(),
            tls_key=gone.tls_key.hex(),
            removed_s=int(now.timestamp()),
        )
        current = {name: member for name, member in self.current.items() if name != site}
        return Members(current, (*self.removed, entry))


def refuse_owned(request: Request, public_key: bytes, owners: Mapping[bytes, str]) -> None:
    """Refuse a request with a key that is somebody's."""
    if public_key in owners:
        raise RosterError(
            f"site {request.site!r} shows {owners[public_key]}",
            remedy="ask the site for a request with new keys",
        )
