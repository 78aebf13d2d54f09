"""Whether the end of every transcript is there.

1. A closing entry says how many sums stand before it. A transcript without one is *open*: the study goes on
   or was stopped, an older version wrote it, or its end was cut off. That is noted.
2. A site that told the aggregator that it has the model has an entry about it; the aggregator's closing
   entries name these sites, each those that said so then: one that is written later takes nothing back.
3. Where a site holds the aggregator's signature over a model, the aggregator's transcript names a model.
"""

from __future__ import annotations

from collections.abc import Sequence

from secfed.audit.languages import said
from secfed.audit.party import Findings, Party
from secfed.records.transcript import CLOSED, MODEL, closing


def check_ends(main: Party, sites: Sequence[Party], found: Findings) -> None:
    """Check the ends of the transcripts of one run; ``main`` is the aggregator's."""
    parties = [party for party in (main, *sites) if party.entries]
    for party in parties:
        body = closing(party.entries)
        if body is not None and body.get("sums") != party.taken:
            text = "it was closed after {of} sums, and it has {sums}"
            closed = said(text, of=body.get("sums"), sums=party.taken)
            found.problem(party.path, len(party.entries), closed)
    if still := [str(party.path) for party in parties if party.is_open]:
        text = (
            "open, without a closing entry: {files} (the study goes on or was stopped, an older version "
            "wrote it, or its end was cut off)"
        )
        found.notes.append(said(text, files=", ".join(still)))
    told = [entry.body.get("delivered") for entry in main.entries if entry.kind == CLOSED]
    delivered = {str(site) for sites in told if isinstance(sites, list) for site in sites}
    for site in sites:
        models = [entry.body for entry in site.entries if entry.kind == MODEL]
        if site.entries and not models and site.owner in delivered:
            why = "its end was cut off: by the aggregator's transcript it has the model, and it names none"
            found.problem(site.path, None, why)
        signed = any("signature" in body for body in models)
        if main.entries and signed and not any(entry.kind == MODEL for entry in main.entries):
            text = "its end was cut off: it names no model, and {site} has one that the aggregator signed"
            found.problem(main.path, None, said(text, site=site.owner))
