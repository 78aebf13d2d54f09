"""Who decides: an account of this machine, or somebody who signed in at the hospital's identity provider."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

BETWEEN: Final = ", "  # two names in one text


@dataclass(frozen=True)
class Person:
    """Somebody who approves or refuses.

    Attributes:
        name: as the decision log writes it, without a comma; empty if not known.
        subject: the identity provider's address, a space, and its own name for this person, which stays
            when an e-mail address changes; empty for an account of this machine.
    """

    name: str
    subject: str = ""

    @classmethod
    def signed_in(cls, name: str, issuer: str, subject: str) -> Self:
        """Who signed in; neither of these holds a comma, a space or a bracket."""
        return cls(f"{name} (OpenID Connect: {issuer})", f"{issuer} {subject}")

    @property
    def known_to(self) -> str:
        """What tells persons apart: an identity provider, or this machine (empty)."""
        return self.subject.partition(" ")[0]

    def is_same(self, other: Person) -> bool:
        """Whether both are one person; of two with one provider, equal names say nothing."""
        return self.subject == other.subject and (bool(self.subject) or self.name == other.name)

    def is_second_to(self, first: Person) -> bool:
        """Whether these are surely two: known to one provider, or both to this machine, as two.

        Somebody who signed in and an account of this machine may be one and the same.
        """
        return bool(first.name) and self.known_to == first.known_to and not self.is_same(first)


NOBODY: Final = Person("")  # whose name is not known
