"""The study: one TOML file, strict, complete and frozen.

A study says everything that all parties must agree on; its digest goes into what they sign. Whatever is
wrong with a file is one :class:`~secfed.errors.ConfigError` that names the key and the remedy.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final, Literal, Self, get_args

from pydantic import Field, SerializeAsAny, model_validator

from secfed.algorithms import registry
from secfed.algorithms.options import OPERATIONAL, ModelOptions, Options, Strict, checked, suggestion
from secfed.algorithms.own import make_importable
from secfed.containment import BROADCAST_BOUND
from secfed.crypto import labels, thresholds
from secfed.crypto.codec import digest
from secfed.crypto.fixedpoint import FixedPoint
from secfed.errors import ConfigError, RangeError
from secfed.privacy_options import PrivacySection

ProtectionName = Literal["plain", "masked", "encrypted"]
PROTECTIONS: Final[tuple[ProtectionName, ...]] = get_args(ProtectionName)

_LEAST_SITES: Final = 2  # a "sum" over one site is that site's update


class StudySection(Strict):
    """``[study]``."""

    name: str = Field(
        pattern=r"^[a-z0-9][a-z0-9-]{0,62}$",
        description="a name for files: lower-case letters, digits and hyphens, at most 63",
    )
    rounds: int = Field(ge=0, le=1_000_000, description="the number of training rounds; 0 only evaluates")
    seed: int = Field(
        default=0, ge=0, lt=2**63, description="the seed of partition, split, initial model and batch order"
    )


class ProtectionSection(Strict):
    """``[protection]``: how summands become totals."""

    name: ProtectionName = Field(default="masked", description="one of " + ", ".join(PROTECTIONS))
    bits: int = Field(
        default=32, ge=8, le=32, description="8 to 32: bits on the wire per element of a tensor"
    )
    bound: float = Field(
        default=4.0,
        gt=0,
        le=2.0**64,
        description="above 0: the largest element of one site's weighted update",
    )
    broadcast_bound: float = Field(
        default=BROADCAST_BOUND,
        gt=0,
        le=2.0**64,
        description="above 0: the largest number in a broadcast; sites refuse another one unseen",
    )
    min_cohort: int = Field(
        default=3, ge=1, description="the least number of sites in a sum, normally 3 or more"
    )
    threshold: int | None = Field(
        default=None, ge=1, description="the number of sites that must answer; leave it out for the default"
    )
    colluders: int | None = Field(
        default=None,
        ge=0,
        description="how many sites may collude with the server; default ceil(n/3) - 1",
    )
    key_mode: Literal["public", "symmetric"] = Field(
        default="public", description='"public" or "symmetric"; only for encrypted'
    )
    key_holder: str | None = Field(
        default=None, description="the site that makes the study key; default the first; only for encrypted"
    )
    scheme: Literal["bfv", "ckks"] = Field(
        default="bfv", description='"bfv" (exact) or "ckks" (approximate); only for encrypted'
    )
    processes: int = Field(
        default=0,
        ge=0,
        le=64,
        json_schema_extra=OPERATIONAL,
        description="worker processes per site for encryption, 0 for none",
    )
    deadline_s: float = Field(
        default=600.0,
        gt=0,
        json_schema_extra=OPERATIONAL,
        description="above 0: seconds a site has to answer",
    )

    def colluders_for(self, sites: int) -> int:
        """Colluding sites tolerated in a cohort of ``sites``."""
        return thresholds.default_colluders(sites) if self.colluders is None else self.colluders

    def tolerated_colluders(self, sites: int) -> int | None:
        """Sites that may collude with the aggregator without learning more than sums.

        Args:
            sites: in the cohort.

        Returns:
            Under encrypted protection 0, since every site holds the key that decrypts; None under plain,
            where the aggregator alone sees every update.
        """
        return {"plain": None, "masked": self.colluders_for(sites), "encrypted": 0}[self.name]

    def threshold_for(self, sites: int) -> int:
        """Sites of a cohort of ``sites`` that must answer."""
        return thresholds.default_threshold(sites) if self.threshold is None else self.threshold

    def check_cohort(self, sites: int) -> None:
        """Check that a cohort of this size can be summed under these rules.

        Args:
            sites: enrolled sites of the cohort.

        Raises:
            ConfigError: names the key that is impossible for this number of sites.
        """
        if sites < _LEAST_SITES:
            raise ConfigError(
                "data.sites: a cohort of one site would reveal that site's update",
                remedy="a study needs at least two sites, and three unless protection.name is plain",
            )
        least = {"plain": 1, "masked": thresholds.FLOOR, "encrypted": 2}[self.name]
        if self.min_cohort < least:
            raise ConfigError(
                f"protection.min_cohort: {self.min_cohort} is below {least}, the least for {self.name}",
                remedy=f"set protection.min_cohort = {least} or more",
            )
        if self.min_cohort > sites:
            raise ConfigError(
                f"protection.min_cohort: {self.min_cohort} is above the number of sites, {sites}",
                remedy="lower protection.min_cohort or add sites"
                if sites >= least
                else f"add sites: a sum under {self.name} protection needs at least {least}",
            )
        if self.threshold is not None and self.threshold > sites:
            raise ConfigError(
                f"protection.threshold: {self.threshold} is above the number of sites, {sites}",
                remedy="lower protection.threshold, or leave it out for the default",
            )
        threshold, colluders = self.threshold_for(sites), self.colluders_for(sites)
        if self.name == "masked" and not thresholds.is_safe(threshold, sites, colluders):
            key = "threshold" if self.threshold is not None else "colluders"
            needed = max(thresholds.FLOOR, (sites + colluders) // 2 + 1)
            raise ConfigError(
                f"protection.{key}: {threshold} answers of {sites} sites do not keep one site's update safe "
                f"from the server and {colluders} colluding sites (2 * threshold must exceed "
                f"sites + colluders, and threshold must be at least {thresholds.FLOOR})",
                remedy=f"set protection.threshold = {needed}"
                if needed <= sites
                else "lower protection.colluders or add sites",
            )
        # First whether the bits leave room for so many sites, whatever the bound.
        for key, bound in (("bits", 1.0), ("bound", self.bound)):
            try:
                FixedPoint.choose(bound=bound, bits=self.bits, sites=sites)
            except RangeError as error:
                remedy = (error.remedy or "").replace("the bound", "protection.bound")
                raise ConfigError(
                    f"protection.{key}: {error.message}",
                    remedy="raise protection.bits" if key == "bits" else remedy,
                ) from None


class Study(Strict):
    """A validated study. Make one with :meth:`load` or :meth:`parse`.

    Attributes:
        study: ``[study]``.
        algorithm: ``[algorithm]``: the options model of the algorithm that ``name`` says.
        model: ``[model]``, likewise.
        data: ``[data]``, likewise.
        protection: ``[protection]``; may be left out.
        privacy: ``[privacy]``; without it the study has no differential privacy.
        folder: where relative paths of the study start; no part of the study's identity.
    """

    study: StudySection
    algorithm: SerializeAsAny[Options]
    model: SerializeAsAny[ModelOptions]
    data: SerializeAsAny[Options]
    protection: ProtectionSection
    privacy: PrivacySection | None = None
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
    def rounds(self) -> int:
        """Number of training rounds."""
        return self.study.rounds

    @property
    def seed(self) -> int:
        """Seed of everything random in training; protects nothing."""
        return self.study.seed

    @classmethod
    def load(cls, path: Path) -> Study:
        """Read a study file of one's own.

        Modules in the working directory and beside the file become importable, for a user's own model or
        data set.

        Raises:
            ConfigError: the file is missing or wrong.
        """
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            near = [other.name for other in path.parent.glob("*.toml")] if path.parent.is_dir() else []
            raise ConfigError(
                f"{path}: there is no such study file",
                remedy=suggestion(path.name, near, "study files there: ") if near else "check the path",
            ) from None
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read ({error.strerror})", remedy="check its mode") from None
        except UnicodeDecodeError:
            raise ConfigError(f"{path}: is not UTF-8 text", remedy="save the study file as UTF-8") from None
        make_importable(Path.cwd(), path.parent)
        return cls._read(text, str(path), path.parent, None)

    @classmethod
    def parse(cls, text: str, *, source: str = "study", own_code: Collection[str] | None = None) -> Study:
        """Read a study from text.

        Args:
            text: TOML.
            source: what to call it in errors.
            own_code: the ``package.module:factory`` names that may be imported; None permits all.

        Raises:
            ConfigError: names the key and the remedy.

        Security: the names in a study decide what is imported. For a text from elsewhere the caller
        passes ``own_code``: what this machine's policy permits, at first nothing.
        """
        return cls._read(text, source, Path(), own_code)

    @classmethod
    def _read(cls, text: str, source: str, folder: Path, own_code: Collection[str] | None) -> Study:
        try:
            tables = tomllib.loads(text.removeprefix("\ufeff"))  # as some editors begin UTF-8
        except ValueError as error:  # also of a number with thousands of digits
            raise ConfigError(f"{source}: not valid TOML: {error}", remedy="correct that line") from None
        except RecursionError:
            raise ConfigError(f"{source}: is nested too deeply", remedy="write flat lists") from None
        return cls._from_tables(tables, folder, own_code)

    @classmethod
    def _from_tables(
        cls, tables: Mapping[str, Any], folder: Path, own_code: Collection[str] | None = None
    ) -> Study:
        _refuse_unavailable(tables)
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
        """Check the study against the number of enrolled sites.

        Raises:
            ConfigError: names the key that is impossible for this number of sites.
        """
        self.protection.check_cohort(sites)

    def tables(self) -> dict[str, Any]:
        """The whole study as plain values, defaults included but for keys that came later."""
        tables = self.model_dump(mode="json")
        if self.privacy is None:
            del tables["privacy"]
        # So that a study without these keys keeps the digest that it had.
        if self.model.start is None:
            del tables["model"]["start"], tables["model"]["start_sha256"]
        if self.protection.broadcast_bound == BROADCAST_BOUND:
            del tables["protection"]["broadcast_bound"]
        return tables

    def identity(self) -> dict[str, Any]:
        """As :meth:`tables`, with the operational keys as if they had been left out."""
        tables = self.tables()
        for name, table in tables.items():
            table.update(getattr(self, name).operational_defaults())
        return tables

    def digest(self, *, operational: bool = False) -> bytes:
        """SHA-256 over the canonical form, defaults included: 32 bytes.

        Two files that differ in comments, in the order of keys, in spelt-out defaults or in operational keys
        are one study: a site that has contributed to one refuses to contribute to the other.

        Args:
            operational: let operational keys count, too: not as the identity of a study, but to tell runs of
                it apart.
        """
        tables = self.tables() if operational else self.identity()
        text = json.dumps(tables, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
        return digest(labels.STUDY_DIGEST, text.encode("ascii"))

    def settings(self, sites: int) -> dict[str, Any]:
        """What a transcript says about the study: nothing that belongs to a single site.

        Args:
            sites: enrolled sites.
        """
        start = {} if self.model.start is None else {"start": self.model.start_sha256}
        return {
            "algorithm": self.algorithm.name,
            "protection": self.protection.name,
            "rounds": self.rounds,
            "sites": sites,
            "privacy": None if self.privacy is None else self.privacy.model_dump(mode="json"),
            **start,
        }

    def replace(self, dotted_key: str, value: object) -> Study:
        """A copy with one key set, validated as if the file had said so.

        Args:
            dotted_key: for example ``protection.name`` or ``data.alpha``, or a whole section.
            value: as the TOML parser would give it; None removes the key.

        Raises:
            ConfigError: names the key and the remedy.
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


def _refuse_unavailable(tables: Mapping[str, Any]) -> None:
    """Refuse what this version cannot do, and keys that would have no effect."""
    protection = tables.get("protection")
    if isinstance(protection, dict) and protection.get("name", "masked") != "encrypted":
        for key in ("key_mode", "key_holder", "scheme", "processes"):
            default = ProtectionSection.model_fields[key].default
            if protection.get(key, default) != default:
                raise ConfigError(
                    f"protection.{key}: has no effect without encryption",
                    remedy='remove it, or set protection.name = "encrypted"',
                )
