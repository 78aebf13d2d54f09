"""What of a running simulation is kept between two rounds, and how a new process takes it up.

The study's seed gives everything random in training, noise and rounding, so only what rounds have changed is
kept. Journals of attempts begin empty: no later round names an attempt of an earlier one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import torch
from pydantic import TypeAdapter

from secfed.crypto.encrypted.study_keys import KeyPair
from secfed.errors import SecfedError
from secfed.runs.run_folder import TRANSCRIPT_FILE, site_folder
from secfed.runs.run_report import RoundReport
from secfed.simulation.parties import Consortium
from secfed.simulation.report import Progress
from secfed.simulation.transport import SimulatedTransport
from secfed.simulation.unfinished import Left
from secfed.site.containment import Failure
from secfed.site.parts import Standing
from secfed.wire.layout import State

_REPORTS: Final = TypeAdapter(list[RoundReport])  # of what asdict() made of them


def kept_of(
    parties: Consortium, progress: Progress, carrier: SimulatedTransport, out: Path
) -> tuple[State, Mapping[str, Any], list[Path]]:
    """Tensors, what else there is as plain JSON, and the records as they are now."""
    state: dict[str, torch.Tensor] = {}
    sites: dict[str, Any] = {}
    keys: KeyPair | None = None
    records = [out / TRANSCRIPT_FILE]
    for number, (name, site) in enumerate(parties.sites.items()):
        state |= {f"site/{number}/{key}": value for key, value in parties.programs[name].kept().items()}
        standing, privacy = site.standing(), site.privacy
        if site.replica is not None:  # those that took equally many sums have equal states
            state |= {f"replica/{standing.sums}/{key}": value for key, value in site.replica.save().items()}
        keys = keys or standing.keys
        records.append(site_folder(out, name) / TRANSCRIPT_FILE)
        if privacy is not None:
            records.append(privacy.ledger.path)
        sites[name] = {
            "stopped": standing.stopped,
            "sums": standing.sums,
            "last": standing.last,
            "has_keys": standing.keys is not None,
            "refused": 0 if privacy is None else privacy.refused,
            "engines": sorted(getattr(privacy and privacy.local, "engines", ())),
            "failures": [asdict(failure) for failure in parties.failures[name]],
        }
    gave_up = carrier.gave_up
    notes = {
        "identities": {
            one.name: one.private_bytes().hex() for one in (parties.aggregator, *parties.identities.values())
        },
        "sites": sites,
        "keys": keys and [keys.secret_key.hex(), keys.public_key.hex()],
        "clipped": parties.clipped.share,
        "gave_up": gave_up and [gave_up[0], gave_up[1].message, gave_up[1].remedy],
        "reports": [asdict(progress.reports[number]) for number in sorted(progress.reports)],
        "survivors": progress.survivors,
        "closing_aborted": progress.closing_aborted,
    }
    return state, notes, records


def go_on(parties: Consortium, progress: Progress, carrier: SimulatedTransport, left: Left) -> None:
    """Put everything where it was, and tell the observer of the rounds that are over."""
    notes = left.notes
    keys = notes["keys"] and KeyPair(*map(bytes.fromhex, notes["keys"]))
    for number, (name, site) in enumerate(parties.sites.items()):
        was, privacy = notes["sites"][name], site.privacy
        parties.programs[name].go_on(left.state(f"site/{number}/"))
        held = keys if was["has_keys"] else None
        standing = Standing(was["stopped"], was["sums"], (was["last"][0], was["last"][1]), held)
        site.stand(standing, left.state(f"replica/{standing.sums}/"))
        failures = ({**one, "fields": tuple(one["fields"])} for one in was["failures"])
        parties.failures[name] += [Failure(**one) for one in failures]
        if privacy is not None:
            privacy.refused = was["refused"]
            getattr(privacy.local, "engines", set()).update(was["engines"])
    parties.clipped.share = notes["clipped"]
    if notes["gave_up"]:
        site_id, message, remedy = notes["gave_up"]
        carrier.gave_up = (site_id, SecfedError(message, remedy=remedy))
    carrier.start_round(left.position.round)
    progress.survivors += notes["survivors"]
    progress.closing_aborted = notes["closing_aborted"]
    for report in _REPORTS.validate_python(notes["reports"], extra="forbid"):
        progress.reports[report.round] = report
        progress.observer.round_kept(report)
