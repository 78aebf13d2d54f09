"""What would leave if a study that waits for a person began: beside its settings (kept_offers.py).

STATE/waiting/<digest>.json    written with the question, removed when the study is admitted
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from secfed.storage import private_files
from secfed.storage.atomic import unwritable_errors

if TYPE_CHECKING:  # torch, for which nobody who approves a study should wait
    from secfed.deploy.policy.sections import DataSet
    from secfed.site.terms import Terms

_MOST_NAMED: Final = 40  # fields of one exchange


def note(state: Path, terms: Terms, data: DataSet) -> None:
    """Keep which data set a study would use, and what would leave."""
    rounds = terms.study.rounds
    exchanges = [*_exchanges(terms, 1), *_exchanges(terms, rounds + 1)]
    path = _path(state, terms.study.digest().hex())
    with unwritable_errors(path.parent):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    private_files.keep(path, private_files.to_json({"data_set": data.name, "exchanges": exchanges}))


def forget(state: Path, digest: str) -> None:
    """The study does not wait any more."""
    _path(state, digest).unlink(missing_ok=True)


def noted(state: Path, digest: str) -> dict[str, Any] | None:
    """What is kept of a study; None if nothing is."""
    path = _path(state, digest)
    return private_files.read_json(path, "a study that waits") if path.exists() else None


def _exchanges(terms: Terms, number: int) -> list[dict[str, Any]]:
    """What leaves in a round: by exchange, how many numbers, of which fields, and which without noise."""
    from secfed.algorithms.framework.base import without_noise

    found, privacy = [], terms.study.privacy
    for exchange in terms.algorithm.exchanges(number):
        fields = exchange.layout.fields
        bare = without_noise(terms.algorithm, exchange, privacy) if privacy else [one.name for one in fields]
        found.append(
            {
                "round": number,
                "name": exchange.name,
                "values": sum(one.elements for one in fields),
                "fields": [one.name for one in fields][:_MOST_NAMED],
                "bare_values": sum(one.elements for one in fields if one.name in bare),
                "bare": [one.name for one in fields if one.name in bare][:_MOST_NAMED],
            }
        )
    return found


def _path(state: Path, digest: str) -> Path:
    return state / "waiting" / f"{digest}.json"
