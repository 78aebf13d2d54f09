"""One encrypted upload presented as the sum of all, with survivors that were never added.

Apart from the other attacks on encrypted sums, because it is also played beside those on masked sums, where
the extra that encryption needs may be missing.
"""

from __future__ import annotations

from typing import Final

from secfed.attack.attack import Attack, AttackSetting, Impossible, attack
from secfed.attack.evidence import Finding
from secfed.crypto.refusals import Refusal
from secfed.errors import ConfigError


@attack(
    "ghost-survivors",
    "presents one upload as the sum of all, for the hospitals to decrypt",
    who="the aggregator, and a hospital that only looks",
    on="encrypted",
    refusals=(Refusal.SUM_TAG,),
)
def _ghost_survivors(setting: AttackSetting) -> Finding:
    try:
        from secfed.attack.encrypted import ghost_survivors
    except ConfigError:
        raise Impossible("needs the extra he") from None
    return ghost_survivors(setting)


GHOST_SURVIVORS: Final[Attack] = _ghost_survivors
