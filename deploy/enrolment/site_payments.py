"""What a site paid for rounds that came to no sum: for its own people, never for the study centre."""

from __future__ import annotations

from collections.abc import Iterator

from secfed.audit.unsummed_payments import paid_without_sum, shown
from secfed.deploy.enrolment.site_folder import SiteFolder
from secfed.dp.ledger.ledger import LEDGER, SPENT
from secfed.records.chain_file import verify_whole_lines
from secfed.records.hash_chain import Entry
from secfed.records.transcript import TRANSCRIPT
from secfed.runs.run_folder import TRANSCRIPT_FILE, study_folder


def wasted(site: SiteFolder, only: str = "") -> Iterator[tuple[str, str]]:
    """Each study with payments that came to no sum, and which ones.

    ``only`` names one study, which is over; without it all studies are looked at, but for the newest payment
    of each, whose exchange may be running.
    """
    public = site.request().identity_key
    for path in sorted(site.state.glob("ledger-*.jsonl")):
        entries = verify_whole_lines(path, public, LEDGER, owner=site.name)
        newest = {str(entry.body.get("study")): entry.body for entry in entries if entry.kind == SPENT}
        for study in [only] if only else newest:
            transcript = study_folder(site.state, study) / TRANSCRIPT_FILE
            recorded: tuple[Entry, ...] = ()
            if transcript.is_file():
                recorded = verify_whole_lines(transcript, public, TRANSCRIPT, owner=site.name)
            places = list(paid_without_sum(entries, recorded, study))
            if not only:
                running = (newest[study].get("round"), newest[study].get("exchange"))
                places = [place for place in places if place != running]
            if places:
                yield study, f"{shown(places)} paid for, and in no sum"
