"""The section of a report about verification, with digests to compare."""

from __future__ import annotations

import shlex

from secfed.audit.privacy import phrases
from secfed.audit.privacy.document import (
    Alert,
    Block,
    Code,
    Column,
    Heading,
    ReportTable,
    Section,
    Text,
    table,
)
from secfed.audit.privacy.evidence import FileFacts, Report

_FILE_COLUMNS: list[Column[FileFacts]] = [
    Column("File", 6, lambda item: item.file, "digest"),
    Column("Kind", 4, lambda item: item.kind),
    Column("Owner", 4, lambda item: item.owner),
    Column("Entries", 3, lambda item: str(item.entries or ""), "number"),
    Column("Head", 6, lambda item: item.head, "digest"),
    Column("SHA-256 of the file", 6, lambda item: item.sha256, "digest"),
    Column("Result", 4, lambda item: "verified" if item.verified else "BAD"),
]


def verification(report: Report) -> Section:
    """What was checked, what was wrong, and how to check it again."""
    check = report.verification
    blocks: list[Block] = []
    if check.problems:
        blocks.append(Alert("bad", "Problems", tuple(map(str, check.problems))))
    else:
        whose = "" if check.pinned else " under keys from these folders"
        blocks.append(
            Alert(
                "good" if check.pinned else "warn",
                f"Every chain and signature verifies{whose}, the transcripts agree, and every recorded "
                f"epsilon is what its events give ({check.recomputed:,} computed again).",
            )
        )
    if check.notes:
        blocks.append(Alert("info", "Worth knowing", tuple(f"{note}." for note in check.notes)))
    if not check.pinned:
        blocks.append(Text(phrases.TEXTS["verification"]["unpinned"]))
    for roster in check.rosters:
        rows = (("aggregator", roster.aggregator), *roster.sites)
        blocks.append(Heading("Roster", f"Digest {roster.digest}"))
        blocks.append(ReportTable(("Party", "Fingerprint of its key"), rows, digests=(1,), weights=(3, 9)))
    blocks.append(Heading("Files", "To compare a file with its digest: sha256sum FILE"))
    blocks.append(table(_FILE_COLUMNS, check.files, lambda item: None if item.verified else "bad"))
    blocks.append(Text("Whoever holds these files can check them again, without a network:"))
    rosters = [part for name in report.named_rosters for part in ("--roster", name)]
    blocks.append(Code((f"secfed audit verify {shlex.join([*report.folders, *rosters])}",)))
    return Section("verification", "Verification", tuple(blocks), new_page=True)
