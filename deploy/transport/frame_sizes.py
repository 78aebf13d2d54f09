"""How long a frame of a study can be: what each side of the link permits the other, before it allocates.

Both sides derive the caps from the study's settings by themselves. They are bounds, not sizes: the protocol
checks exact lengths; a cap only keeps a peer from announcing terabytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from secfed.algorithms.framework.base import Algorithm
from secfed.crypto.upload import Upload
from secfed.protection.interface import Protection
from secfed.wire.frames import encode_state

_FIXED_BYTES: Final = 1 << 16  # headers, signatures, a specification's fixed part
_PER_SITE_BYTES: Final = 8192  # one site's keys, envelopes and names in a message about all sites
# Where sites decrypt sums, the key holder's message has one sealed study key per site, and public keys.
_KEYS_FIXED_BYTES: Final = 1 << 23
_KEYS_PER_SITE_BYTES: Final = 1 << 18
_STATE_GROWTH: Final = 2  # a server program's state may gain some entries after the first round


@dataclass(frozen=True)
class FrameCaps:
    """Longest frames of one study."""

    request_bytes: int  # from the aggregator to a site
    answer_bytes: int  # from a site to the aggregator

    @classmethod
    def of(cls, algorithm: Algorithm, rounds: int, sites: int, protection: Protection) -> FrameCaps:
        """The caps of a study."""
        planned = [(number, each) for number in range(1, rounds + 2) for each in algorithm.exchanges(number)]
        exchanges = [each for _, each in planned]
        common = _FIXED_BYTES + sites * _PER_SITE_BYTES
        upload = max(map(protection.upload_bytes, exchanges), default=0)
        if protection.traits.aggregator_reads_sums:
            server = algorithm.server()
            kinds = {each: number for number, each in planned}  # an exchange repeats from round to round
            states = (server.broadcast(number, each) for each, number in kinds.items())
            # The finished model travels, too: a server program may keep parts of it from its broadcasts.
            state = max(len(encode_state(one)) for one in (*states, server.model()))
            framed = Upload.VECTOR_AT + upload + Upload.TRAILER_BYTES
            return cls(common + _STATE_GROWTH * state, common + framed)
        common += _KEYS_FIXED_BYTES + sites * _KEYS_PER_SITE_BYTES
        return cls(common + max(map(protection.sum_bytes, exchanges), default=0), common + upload)
