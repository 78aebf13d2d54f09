"""The section of a report about verification, with digests to compare."""

from __future__ import annotations

import shlex

from secfed.audit.privacy.document import Alert, Block, Code, Heading, ReportTable, Section, Text
from secfed.audit.privacy.evidence import FileFacts, Report


def verification(report: Report) -> Section:
    """What was checked, what was wrong, and how to check it again."""
    check = report.verification
    blocks: list[Block] = []
    if check.problems:
        lines = tuple(
            f"{item.file}{f', line {item.line}' if item.line else ''}: {item.why}" for item in check.problems
        )
        blocks.append(Alert("bad", "Problems", lines))
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
        blocks.append(
            Text(
                "The keys came from the rosters in the folders themselves. That shows that the folders are "
                "consistent, not who made them: compare the roster digest below with the one you pinned, or "
                "make the report again with --roster."
            )
        )
    for roster in check.rosters:
        rows = (("aggregator", roster.aggregator), *roster.sites)
        blocks.append(Heading("Roster", f"Digest {roster.digest}"))
        blocks.append(ReportTable(("Party", "Fingerprint of its key"), rows, digests=(1,), weights=(3, 9)))
    blocks.append(Heading("Files", "To compare a file with its digest: sha256sum FILE"))
    blocks.append(_files(check.files))
    blocks.append(Text("Whoever holds these files can check them again, without a network:"))
    words = [*report.folders, *(word for name in report.named_rosters for word in ("--roster", name))]
    blocks.append(Code((f"secfed audit verify {shlex.join(words)}",)))
    return Section("verification", "Verification", tuple(blocks), new_page=True)


def _files(files: tuple[FileFacts, ...]) -> ReportTable:
    rows = tuple(
        (
            item.file,
            item.kind,
            item.owner,
            str(item.entries) if item.entries else "",
            item.head,
            item.sha256,
            "verified" if item.verified else "BAD",
        )
        for item in files
    )
    return ReportTable(
        ("File", "Kind", "Owner", "Entries", "Head", "SHA-256 of the file", "Result"),
        rows,
        numbers=(3,),
        digests=(0, 4, 5),
        weights=(6, 4, 4, 3, 6, 6, 4),
        tones=tuple((place, "bad") for place, item in enumerate(files) if not item.verified),
    )
