"""The settings of a study that are kept beside its records, believed only if they have the digest in its id.

Transcripts name a study by its digest and repeat few of its settings. A hospital keeps all of them
(``settings.json``, written by its agent), and so does a simulation (``study.json``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from secfed.audit.languages import said
from secfed.audit.privacy import phrases
from secfed.audit.privacy.findings import AuditedRun
from secfed.crypto import labels
from secfed.crypto.codec import digest
from secfed.runs.run_folder import STUDY_FILE

_KEPT_BY_AGENT: Final = "settings.json"
_MAX_BYTES: Final = 1 << 20


def source_and_columns(run: AuditedRun) -> tuple[str | None, tuple[str, ...]]:
    """The data source that a study names, and the columns of the table that it reads, the label last."""
    data = _tables(run).get("data")
    if not isinstance(data, Mapping):
        return None, ()
    columns = [*data.get("feature_columns", ()), *filter(None, [data.get("label_column")])]
    return str(data.get("name")), tuple(map(str, columns))


def withheld(run: AuditedRun) -> str:
    """What a study of statistics tells nowhere, by its settings; "" of any other."""
    algorithm = _tables(run).get("algorithm")
    if not isinstance(algorithm, Mapping) or algorithm.get("name") != "statistics":
        return ""
    if _tables(run).get("privacy") is not None:
        return said("Statistics under noise in the sum: nothing is withheld for small numbers.")
    cell, hospitals = algorithm.get("min_cell"), algorithm.get("min_hospitals")
    return said(
        "Statistics: what would tell of fewer than min_cell = {cell} records, or of fewer than "
        "min_hospitals = {hospitals} hospitals, is withheld from the results. Who reads the sums reads it.",
        cell=cell,
        hospitals=hospitals,
    )


def _tables(run: AuditedRun) -> Mapping[str, Any]:
    wanted = phrases.settings_digest(run.study)
    folders = dict.fromkeys([one.source.run_folder for one in run.parties])
    for path in (folder / name for folder in folders for name in (STUDY_FILE, _KEPT_BY_AGENT)):
        tables = _read(path)
        text = json.dumps(tables, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
        if tables and digest(labels.STUDY_DIGEST, text.encode("ascii")).hex() == wanted:
            return tables
    return {}


def _read(path: Path) -> Mapping[str, Any]:
    try:
        if path.stat().st_size > _MAX_BYTES:
            return {}
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    tables = content.get("tables", content) if isinstance(content, dict) else {}
    return tables if isinstance(tables, dict) else {}
