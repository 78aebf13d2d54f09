"""How long a frame of a study can be: what each side of the link permits the other, before it allocates.

Both sides derive the caps from the study's settings by themselves. They are bounds, not sizes: the protocol
checks exact lengths; a cap only keeps a peer from announcing terabytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from secfed.algorithms.framework.base import Algorithm
from secfed.crypto.upload import Upload
from secfed.protection.encrypted_plan import EncryptedPlan
from secfed.wire.frames import encode_state
from secfed.wire.layout import Exchange

_FIXED_BYTES: Final = 1 << 16  # headers, signatures, a specification's fixed part
_PER_SITE_BYTES: Final = 8192  # one site's keys, envelopes and names in a message about all sites
# Under encrypted protection the key holder's message has one sealed study key per site, and public keys.
_SEALED_FIXED_BYTES: Final = 1 << 23
_SEALED_PER_SITE_BYTES: Final = 1 << 18
_STATE_GROWTH: Final = 2  # a server program's state may gain some entries after the first round


@dataclass(frozen=True)
class FrameCaps:
    """Longest frames of one study."""

    request_bytes: int  # from the aggregator to a site
    answer_bytes: int  # from a site to the aggregator

    @classmethod
    def of(
        cls, algorithm: Algorithm, rounds: int, sites: int, plan: EncryptedPlan | None = None
    ) -> FrameCaps:
        """The caps of a study."""
        planned = [(number, each) for number in range(1, rounds + 2) for each in algorithm.exchanges(number)]
        exchanges = [each for _, each in planned]
        common = _FIXED_BYTES + sites * _PER_SITE_BYTES
        if plan is None:
            server = algorithm.server()
            kinds = {each: number for number, each in planned}  # an exchange repeats from round to round
            states = (server.broadcast(number, each) for each, number in kinds.items())
            # The finished model travels, too: a server program may keep parts of it from its broadcasts.
            state = max(len(encode_state(one)) for one in (*states, server.model()))
            vector = max((each.layout.shape.wire_bytes for each in exchanges), default=0)
            framed = Upload.VECTOR_AT + vector + Upload.TRAILER_BYTES
            return cls(common + _STATE_GROWTH * state, common + framed)
        common += _SEALED_FIXED_BYTES + sites * _SEALED_PER_SITE_BYTES
        sizes = [_ciphertext_bytes(plan, each) for each in exchanges]
        return cls(
            common + max((total for _, total in sizes), default=0),
            common + max((upload for upload, _ in sizes), default=0),
        )


def _ciphertext_bytes(plan: EncryptedPlan, exchange: Exchange) -> tuple[int, int]:
    """Bytes of one upload and of one sum."""
    from secfed.crypto.encrypted.server import SUM, UPLOAD, FrameFormat  # TenSEAL is an optional dependency

    parameters = plan.parameters(exchange)
    return FrameFormat(parameters, UPLOAD).total_bytes, FrameFormat(parameters, SUM).total_bytes
