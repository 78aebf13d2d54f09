"""Sentences that the console shows of modules that know no catalogue, found in their sources."""

from __future__ import annotations

import ast
import errno
import itertools
import os
import re
from collections.abc import Iterator
from functools import cache
from typing import Final

from secfed.deploy.policy.absence import HELD_TEXT, WAITING_TEXT, Absence
from tests.secfed.audit.messages import ROOT

# Whose errors, states and remedies a person meets in the console. Others are introduced as English ones.
MODULES: Final = (
    "crypto/refusals.py",
    "deploy/admission/admission.py",
    "deploy/admission/approvals.py",
    "deploy/admission/approvals_table.py",
    "deploy/admission/kept_offers.py",
    "deploy/admission/meant_study.py",
    "deploy/admission/near_twins.py",
    "deploy/admission/offered.py",
    "deploy/admission/persons.py",
    "deploy/admission/waiting.py",
    "deploy/agent/study_handler.py",
    "deploy/agent/training.py",
    "deploy/enrolment/site_folder.py",
    "deploy/enrolment/site_payments.py",
    "deploy/enrolment/site_status.py",
    "deploy/pki/certificate_checks.py",
    "deploy/pki/tls_folder.py",
    "deploy/policy/absence.py",
    "deploy/policy/check.py",
    "deploy/policy/policy.py",
    "deploy/policy/rules.py",
    "deploy/policy/sections.py",
    "deploy/transport/grpc/client.py",
    "deploy/transport/progress.py",
    "dp/ledger/ledger.py",
    "secfed/audit/privacy/files.py",
    "secfed/config/schema.py",
    "secfed/config/toml_file.py",
    "secfed/records/chain_file.py",
    "secfed/records/clock.py",
    "secfed/records/decision_log.py",
    "secfed/records/hash_chain.py",
    "secfed/records/roster_file.py",
    "secfed/site/containment.py",
    "secfed/site/lost_memory.py",
    "secfed/site/terms.py",
    "secfed/storage/atomic.py",
    "secfed/storage/private_files.py",
    "secfed/wire/refusal_codes.py",
)
_SHOULD: Final = (
    *(f"a valid {kind}" for kind in ("string", "number", "integer", "boolean")),
    *(f"{much} than{end} {{0}}" for much in ("greater", "less") for end in ("", " or equal to")),
)
# Sentences of Python, the system and pydantic that these modules pass on, and how they are put together.
OTHERS: Final = (
    *(
        os.strerror(number)
        for number in (errno.ENOENT, errno.EACCES, errno.ENOSPC, errno.EROFS, errno.EISDIR)
    ),
    *(f"should be {one}{end}" for one in _SHOULD for end in ("", ", not {1}")),
    *(f"{{0}} {unit}{end}" for unit in ("day", "hour", "minute", "second") for end in ("", "s")),
    "{0} exchange (round {1})",
    "{0} exchanges (round {1})",
    "{0} exchanges (rounds {1})",
    "{0} exchanges (rounds {1} and {2} more)",
    "{0} (read from {1})",
    "{0} expired on {1}; {2} says {3}, {4} later",
    f"study {{0}} {HELD_TEXT}",
    f"study {{0}} {WAITING_TEXT}: {{1}}",
    "study {0} is not permitted at this site: {1}",
    *(f"{state}: {{0}}" for state in (Absence.HELD, Absence.PAUSED, Absence.WAITING)),
    "{0}. Remedy: {1}",
    "{0}, {1}, {2}",
    "{0}, {1}",
    "{0}, ",
    "{0}; {1}",
    "{0}: {1}",
    "{0} ({1})",
    "{0}.",
)
# Sentences of these modules that nobody reads in the console, or whose parts are in OTHERS.
NOT_SHOWN: Final = frozenset(
    {
        "%Y-%m-%d %H:%M UTC",
        # What secfed agent show says in a terminal.
        " of {0} records",
        "NONE: no noise, and nothing is paid from a budget",
        "NONE: the aggregator receives this hospital's own values",
        "all noise added here",
        "all that the data set has",
        "as usual",
        "epsilon {0} at delta {1} for every {2}{3}",
        "noise in the sum, shared by the hospitals",
        "not stated; ask the study centre",
        "the aggregator",
        "the hospitals only",
        "{0}, {1} rounds; {2}",
        "{0}; sums over at least {1} hospitals, read by {2}",
        # Said by patterns with more words.
        " (read from {0})",
        ", not {0}",
        "Value error, ",
        "a name appears twice",
        "study {0} {1}",
        "study {0} {1}: {2}",
        "uid {0}",
        "{0} UTC",
        "{0} of {1}",
        "{0} elements",
        "{0} {1} to {2}",
        "{0}: ca",
        "refusal {0}: {1}{2}.",
        "renew soon",
    }
)
_LOGGED: Final = frozenset({"debug", "info", "warning", "error", "exception", "failpoint"})
_WORD: Final = re.compile("[A-Za-z]{2}")


@cache
def core_messages() -> frozenset[str]:
    """All of them, with ``{0}``, ``{1}`` for values."""
    found = {text for module in MODULES for text in _sentences(module)}
    return frozenset(found - NOT_SHOWN | set(OTHERS))


def _sentences(module: str) -> Iterator[str]:
    tree = ast.parse((ROOT / module).read_text("utf-8"))
    left_out = set(_not_shown(tree))
    begun = {id(node.left) for node in ast.walk(tree) if isinstance(node, ast.BinOp)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant | ast.JoinedStr) and id(node) not in left_out:
            for text in _templates(node, id(node) in begun):
                if " " in text.strip() and _WORD.search(re.sub(r"\{\d\}", "", text)):
                    yield text


def _not_shown(tree: ast.Module) -> Iterator[int]:
    """Docstrings, what goes into a log or names a failpoint, and parts of f-strings."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr):
            yield id(node.value)
        elif isinstance(node, ast.JoinedStr):
            for part in ast.walk(node):
                if part is not node and not _is_inside_value(node, part):
                    yield id(part)
            for value in node.values:
                if len(_choices(value)) == 2 and isinstance(value, ast.FormattedValue):
                    yield from map(id, ast.walk(value))
        elif isinstance(node, ast.Call) and _name(node.func) in _LOGGED:
            yield from (id(one) for one in node.args)
        elif isinstance(node, ast.Call) and _name(node.func) == "Field":
            yield from (id(one.value) for one in node.keywords)


def _is_inside_value(node: ast.JoinedStr, part: ast.AST) -> bool:
    values = [one.value for one in node.values if isinstance(one, ast.FormattedValue)]
    return any(part is inside for value in values for inside in ast.walk(value))


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _templates(node: ast.Constant | ast.JoinedStr, is_begun: bool) -> Iterator[str]:
    """A text, once for every choice of two constants in it; one to which something is added goes on."""
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    if all(isinstance(one, ast.FormattedValue) or isinstance(one.value, str) for one in parts):
        for chosen in itertools.product(*map(_choices, parts), [None] if is_begun else [""]):
            numbers = itertools.count()
            text = "".join(f"{{{next(numbers)}}}" if one is None else one for one in chosen)
            yield f"{text}{{{next(numbers)}}}" if text.endswith(": ") else text


def _choices(part: ast.expr) -> list[str | None]:
    if isinstance(part, ast.Constant):
        return [str(part.value)]
    if isinstance(part, ast.FormattedValue) and isinstance(part.value, ast.IfExp):
        two = part.value.body, part.value.orelse
        if all(isinstance(one, ast.Constant) for one in two):
            return [str(one.value) for one in two if isinstance(one, ast.Constant)]
    return [None]
