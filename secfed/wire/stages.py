"""The stages of an exchange, in order."""

from __future__ import annotations

STAGES = ("train", "advertise", "share", "confirm", "mask", "consistency", "unmask")
