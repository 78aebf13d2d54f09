"""Heads that an earlier report showed: the second witness of a chain whose owner holds its key.

A chain by itself does not show that its end was cut off, or that it was written anew. Whoever kept a head can
show it: a chain that ever ended there has an entry with that hash for ever.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from secfed.audit.privacy.findings import CheckedFolder
from secfed.errors import ConfigError


def check_seen(state: CheckedFolder, seen: Sequence[str]) -> None:
    """Look for every head among the verified entries.

    Raises:
        ConfigError: one of them is no head.
    """
    for head in seen:
        if not re.fullmatch(r"[0-9a-f]{64}", head.lower()):
            raise ConfigError(
                f"--seen {head[:70]}: is not a head",
                remedy="give all 64 hexadecimal digits, as the report shows them under Verification",
            )
    if not seen:
        return
    known = {entry.hash.hex() for chain in state.chains for entry in chain.entries}
    for head in seen:
        if head.lower() not in known:
            folder = state.found.folders[0]
            state.problem(
                folder,
                None,
                f"no record below it has the head {head.lower()}, which was shown earlier: a record was cut "
                "off, replaced or written anew, does not verify, or is not here",
            )
