"""The stages of an exchange, in order; ``choose`` is there in a sparse graph of masks only."""

from __future__ import annotations

STAGES = ("train", "advertise", "choose", "share", "confirm", "mask", "consistency", "unmask")
