"""The study: one TOML file, strict, complete and frozen.

A study says everything that all parties must agree on; its digest goes into what they sign. Whatever is
wrong with a file is one :class:`~secfed.errors.ConfigError` that names the key and the remedy.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Self

from pydantic import Field, SerializeAsAny, model_validator

from secfed.config.plugins import allow_imports
from secfed.config.schema import ModelOptions, Options, Strict, checked, suggestion
from secfed.config.sections import ProtectionSection, StudySection
from secfed.config.toml_file import parse_tables, read_own_text
from secfed.crypto import labels
from secfed.crypto.codec import digest
from secfed.dp.settings import PrivacySection
from secfed.errors import ConfigError
from secfed.study import registry


class Study(Strict):
    """A validated study, one attribute for each table, made by :meth:`load`, :meth:`of` or :meth:`parse`."""

    study: StudySection
    algorithm: SerializeAsAny[Options]
    model: SerializeAsAny[ModelOptions]
    data: SerializeAsAny[Options]
    protection: ProtectionSection
    privacy: PrivacySection | None = None  # without it the study has no differential privacy
    # Where relative paths of the study start; not a part of its identity.
    folder: Path = Field(default=Path(), exclude=True, repr=False)

    @model_validator(mode="after")
    def _check(self) -> Self:
        sites = registry.site_ids(self.data)
        if sites is not None:
            self.check_roster(len(sites))
        return self

    @property
    def name(self) -> str:
        """Name of the study, fit for file names."""
        return self.study.name

    @property
    def own_code(self) -> tuple[str, ...]:
        """Names of the factories that are a user's own."""
        tables = (self.algorithm, self.model, self.data)
        return tuple(name for table in tables for name in table.own_factories.values())

    @property
    def rounds(self) -> int:
        """Number of training rounds."""
        return self.study.rounds

    @property
    def seed(self) -> int:
        """Seed of everything random in training; protects nothing."""
        return self.study.seed

    @classmethod
    def load(cls, path: Path) -> Study:
        """Read a study file of one's own; ConfigError if it is missing or wrong.

        Modules in the working directory and beside the file become importable, for a user's own model or
        data set.
        """
        text = read_own_text(path, "study file")
        allow_imports(Path.cwd(), path.parent)
        return cls._from_tables(parse_tables(text, str(path)), path.parent)

    @classmethod
    def parse(cls, text: str, *, source: str = "study", own_code: Collection[str] | None = None) -> Study:
        """Read a study from text; ``own_code`` names the factories that may be imported, None permits all.

        Security: the names in a study decide what is imported. For a text from elsewhere the caller
        passes ``own_code``: what this machine's policy permits, at first nothing.
        """
        return cls._from_tables(parse_tables(text, source), Path(), own_code)

    @classmethod
    def of(cls, *, folder: Path | None = None, **tables: Mapping[str, Any]) -> Study:
        """Make a study from its tables, as a study file has them; relative paths start in ``folder``.

        In the place of ``name`` a function or a class of your own may stand: ``model={"name": Net}``.
        """
        allow_imports(Path.cwd())
        return cls._from_tables(
            {name: _with_name(name, table) for name, table in tables.items()}, folder or Path()
        )

    @classmethod
    def _from_tables(
        cls, tables: Mapping[str, Any], folder: Path, own_code: Collection[str] | None = None
    ) -> Study:
        sections = set(cls.model_fields) - {"folder"}
        for name, section in tables.items():
            if name not in sections:
                if name == "sweep":
                    raise ConfigError("sweep: this file is a set of runs", remedy="use: secfed sweep")
                raise ConfigError(f"{name}: unknown section", remedy=suggestion(name, sections, "use: "))
            if not isinstance(section, dict):
                raise ConfigError(f"{name}: is a value, not a section", remedy=f"write [{name}]")
        for name in sorted(sections - set(tables) - {"protection", "privacy"}):
            raise ConfigError(f"{name}: this section is missing", remedy=f"add [{name}] to the study file")
        chosen: dict[str, Any] = {
            kind: registry.resolve(kind, tables[kind], own_code) for kind in registry.KINDS
        }
        return cls(
            study=checked(StudySection, tables["study"], "study"),
            protection=checked(ProtectionSection, tables.get("protection", {}), "protection"),
            privacy=checked(PrivacySection, tables["privacy"], "privacy") if "privacy" in tables else None,
            folder=folder,
            **chosen,
        )

    def check_roster(self, sites: int) -> None:
        """Check the study against the number of enrolled sites."""
        self.protection.check_cohort(sites)
        shared = self.privacy is not None and self.privacy.noise == "sum"
        if shared and not self.protection.traits.hides_sites:
            raise ConfigError(
                f'privacy.noise: "sum" relies on a secure sum, and under {self.protection.name} protection '
                "the aggregator receives each site's own values, with a share of the noise only",
                remedy='set protection.name = "masked" or "encrypted", or privacy.noise = "site"',
            )

    def tables(self) -> dict[str, Any]:
        """The whole study as plain values, defaults included but for keys that came later."""
        tables = self.model_dump(mode="json")
        if self.privacy is None:
            del tables["privacy"]
        else:
            tables["privacy"] = self.privacy.canonical()
        # So that a study without these keys keeps the digest that it had.
        if self.model.start is None:
            del tables["model"]["start"], tables["model"]["start_sha256"]
        if tables["model"].get("adapters", "") is None:
            del tables["model"]["adapters"], tables["model"]["adapter_rank"]
        if tables["data"].get("patient_key", "") is None:
            del tables["data"]["patient_key"]
        return self._without_later(tables)

    def identity(self) -> dict[str, Any]:
        """As :meth:`tables`, with the operational keys as if they had been left out."""
        tables = self.tables()
        for name, table in tables.items():
            table.update(getattr(self, name).operational_defaults())
        return self._without_later(tables)

    def _without_later(self, tables: dict[str, Any]) -> dict[str, Any]:
        for name, table in tables.items():
            later = getattr(self, name).later_defaults()
            for key in [key for key, default in later.items() if table.get(key) == default]:
                table.pop(key, None)
        return tables

    def digest(self, *, operational: bool = False) -> bytes:
        """SHA-256 over the canonical form, defaults included: 32 bytes.

        Two files that differ in comments, in the order of keys, in spelt-out defaults or in operational keys
        are one study: a site that has contributed to one refuses to contribute to the other. With
        ``operational`` those keys count, too: not as the identity of a study, but to tell runs of it apart.
        """
        tables = self.tables() if operational else self.identity()
        text = json.dumps(tables, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
        return digest(labels.STUDY_DIGEST, text.encode("ascii"))

    def settings(self, sites: int) -> dict[str, Any]:
        """What a transcript says about the study: nothing that belongs to a single site."""
        start = {} if self.model.start is None else {"start": self.model.start_sha256}
        return {
            "algorithm": self.algorithm.name,
            "protection": self.protection.kind,
            "rounds": self.rounds,
            "sites": sites,
            "privacy": None if self.privacy is None else self.privacy.canonical(),
            **start,
        }

    def replace(self, dotted_key: str, value: object) -> Study:
        """A copy with one key (``data.alpha``) or section set, validated as if the file had said so.

        ``value`` is as the TOML parser would give it; None removes the key.
        """
        tables = {name: table for name, table in self.model_dump(exclude_unset=True).items() if table}
        *parents, last = dotted_key.split(".")
        node: Any = tables
        for parent in parents:
            node = node.setdefault(parent, {})
            if not isinstance(node, dict):
                raise ConfigError(f"{dotted_key}: {parent} is a value, not a table", remedy="check the key")
        node[last] = value
        if value is None:
            del node[last]
        return self._from_tables(tables, self.folder)


def _with_name(section: str, table: object) -> object:
    """A table whose ``name`` is a text."""
    own = table.get("name") if isinstance(table, Mapping) else None
    if not isinstance(table, Mapping) or not callable(own):
        return dict(table) if isinstance(table, Mapping) else table
    module, name = getattr(own, "__module__", None), getattr(own, "__qualname__", "")
    if module is None or not name.isidentifier():
        raise ConfigError(
            f"{section}.name: {name or own!r} has no name in a module, so nothing else could find it",
            remedy="define it at the top of a module or of a notebook's cell",
        )
    return {**table, "name": f"{module}:{name}"}
