"""When a certificate ends, and since when to say so."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, Self

from cryptography import x509

ANNOUNCED: Final = timedelta(weeks=4)


class Urgency(StrEnum):
    """What the owner of a certificate has to do."""

    FINE = "fine"
    SOON = "renew soon"
    EXPIRED = "expired"


@dataclass(frozen=True)
class Expiry:
    """How long a certificate is still good for."""

    end: datetime
    days_left: int  # whole days; 0 on the last day and after
    urgency: Urgency

    @classmethod
    def of(cls, certificate: x509.Certificate, now: datetime) -> Self:
        """Announced four weeks ahead, or half a lifetime where that is shorter; ``now`` has a time zone."""
        end = certificate.not_valid_after_utc
        left = end - now
        lifetime = end - certificate.not_valid_before_utc
        urgency = Urgency.FINE
        if left <= timedelta(0):
            urgency = Urgency.EXPIRED
        elif left <= min(ANNOUNCED, lifetime / 2):
            urgency = Urgency.SOON
        return cls(end, max(0, left.days), urgency)

    def describe(self) -> str:
        """For a table: the day, and how far away it is."""
        day = self.end.strftime("%Y-%m-%d")
        if self.urgency is Urgency.EXPIRED:
            return f"expired on {day}"
        unit = "day" if self.days_left == 1 else "days"
        return f"until {day} ({self.days_left} {unit})"
