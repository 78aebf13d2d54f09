"""A policy that permits one study and nothing more: what an administrator begins with."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final

import tomli_w

from secfed.config.schema import Options
from secfed.deploy.policy.check import shows_state

if TYPE_CHECKING:
    from secfed.study.study import Study  # needs torch

_HEAD: Final = """# Permits the study {name} with exactly its settings, by its digest; made from its file.
# After any change of the study, make it again.
# Read every line before it counts: whoever wrote the study wrote these limits. What the keys mean, and wider
# rules ({{ max = 5 }}, "any"), are in the policy.toml that `secfed site init` writes.
# Each data set's budget is what this one study may spend. The path is where the data are on this machine.

"""
_KEPT_STATE: Final = 'kept_state = "permit"'
_LYING: Final = "an aggregator that lies could read what the algorithm keeps of this site"
_LINE: Final = 90  # characters of an array on one line
_ELSEWHERE: Final = {  # settings that other parts of a policy decide, or that are of no matter here
    "algorithm": {"name", "device"},
    "model": {"name", "start"},
    "data": {"name", "path", "sites"},
}


def proposal(study: Study) -> str:
    """The text of the policy."""
    text = in_short(_visible(tomli_w.dumps(_tables(study))))
    return _HEAD.format(name=study.name) + text.replace(_KEPT_STATE, f"{_KEPT_STATE}  # {_LYING}", 1)


def in_short(toml: str) -> str:
    """With arrays of plain values on one line, where they fit."""

    def joined(found: re.Match[str]) -> str:
        line = f"[{', '.join(item.strip().removesuffix(',') for item in found[1].splitlines())}]"
        return line if len(line) <= _LINE else found[0]

    return re.sub(r"\[\n((?:    [^\[\]{}\n]+,\n)+)\]", joined, toml)


def _visible(toml: str) -> str:
    """With escapes for what is not printable: control sequences, and marks that reverse what stands there."""
    return "".join(_escaped(char) if not (char.isprintable() or char == "\n") else char for char in toml)


def _escaped(char: str) -> str:
    return f"\\u{ord(char):04X}" if ord(char) < 1 << 16 else f"\\U{ord(char):08X}"


def _tables(study: Study) -> dict[str, Any]:
    data: dict[str, Any] = {"name": _ledger_name(study), "source": study.data.name}
    if path := getattr(study.data, "path", None):
        data |= {"path": f"/srv/secfed/data/{PurePosixPath(path).name}", "study_path": path}
    if options := _rules("data", study.data):
        data["options"] = options
    if study.privacy is not None:
        spends = {"epsilon": study.privacy.epsilon, "delta": study.privacy.delta}
        data["budget"] = [{**spends, "protects": study.privacy.budgeted.value}]  # for ever
    return {
        "approve": "manual",
        "studies": {"digests": [study.digest().hex()], "max_rounds": study.rounds},
        "protection": _protection(study),
        "privacy": _privacy(study),
        "compute": {"gpu": getattr(study.algorithm, "device", "cpu") == "cuda"},
        "algorithms": {study.algorithm.name: _rules("algorithm", study.algorithm)},
        "models": {study.model.name: _rules("model", study.model)},
        "data": [data],
    }


def _protection(study: Study) -> dict[str, Any]:
    asked = study.protection
    rules: dict[str, Any] = {
        "names": [asked.name],
        "reveal": ["aggregator" if asked.traits.aggregator_reads_sums else "sites"],
        "min_cohort": asked.min_cohort,
    }
    if shows_state(study):
        rules["kept_state"] = "permit"
    if "scheme" in asked.traits.own_options:
        rules["schemes"] = [asked.scheme]
    if asked.processes:
        rules["max_processes"] = asked.processes
    return rules


def _privacy(study: Study) -> dict[str, Any]:
    asked = study.tables().get("privacy")
    if asked is None:
        return {"require": False}
    chosen = {"units": "unit", "metrics": "metrics", "weights": "weights", "accountants": "accountant"}
    return {
        "max_epsilon": asked["epsilon"],
        "max_delta": asked["delta"],
        **{rule: [asked[key]] for rule, key in chosen.items()},
        "noise": ["sum" if asked["noise"] == "sum" else "site"],
    }


def _rules(kind: str, options: Options) -> dict[str, Any]:
    """A rule for each setting that is not the default: a setting without one must have its default."""
    rules: dict[str, Any] = {}
    defaults = type(options).model_fields
    for key, value in options.for_policy("json").items():
        field = defaults.get(key)
        optional = field is not None and not field.is_required()
        default = field.get_default(call_default_factory=True) if field is not None and optional else None
        if key in _ELSEWHERE[kind] or value is None or getattr(options, key, value) == default:
            continue
        rules[key] = _rule(value)
    return rules


def _rule(value: Any) -> Any:
    if isinstance(value, dict):
        parts = [*value, *value.values()]
        return "any" if any(isinstance(part, dict | list) for part in parts) else _once(parts)
    if isinstance(value, list):
        return "any" if any(isinstance(part, dict | list) for part in value) else _once(value)
    return [value]


def _once(values: list[Any]) -> list[Any]:
    return [value for at, value in enumerate(values) if value not in values[:at]]


def _ledger_name(study: Study) -> str:
    """After the file, whatever source reads it: its records have one budget."""
    source = study.data.name
    file = getattr(study.data, "path", None) or source.partition(":")[2] or source
    name = re.sub(r"[^a-z0-9._-]+|_", "-", PurePosixPath(file).stem.lower()).strip("-._")[:63]
    return name or "records"
