"""Who decides: an account of this machine, or somebody who signed in at the hospital's identity provider."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final, Self

BETWEEN: Final = ", "  # two names in one text


@dataclass(frozen=True)
class Person:
    """Somebody who approves or refuses.

    Attributes:
        name: as the decision log writes it, without a comma; empty if not known.
        subject: the identity provider's address, the name of the console there, and the provider's own name
            for this person, with spaces between; empty for an account of this machine. The last stays when
            an e-mail address changes, and may be another one for each name of the console ("pairwise").
    """

    name: str
    subject: str = ""

    @classmethod
    def signed_in(cls, name: str, issuer: str, client_id: str, subject: str) -> Self:
        """Who signed in; none of these holds a space, nor name and issuer a comma or a bracket."""
        return cls(f"{name} (OpenID Connect: {issuer})", f"{issuer} {client_id} {subject}")

    @property
    def known_to(self) -> str:
        """Who tells persons apart: a provider, as it answers one client, or this machine (empty)."""
        return self.subject.rpartition(" ")[0]

    @property
    def digest(self) -> str:
        """What a page names this person by in a form: letters that every browser sends back as they were."""
        return hashlib.sha256(f"{self.name}\n{self.subject}".encode()).hexdigest()

    def is_same(self, other: Person) -> bool:
        """Whether both are one person; of two with one provider, equal names say nothing."""
        return self.subject == other.subject and (bool(self.subject) or self.name == other.name)

    def is_second_to(self, first: Person) -> bool:
        """Whether these are surely two: known to one provider, or both to this machine, as two.

        Somebody who signed in and an account of this machine may be one and the same.
        """
        return bool(first.name) and self.known_to == first.known_to and not self.is_same(first)


NOBODY: Final = Person("")  # whose name is not known
