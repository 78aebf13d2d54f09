"""What `make release` does: build twice from the last commit, compare, and write what a release consists of.

    python .ci/release.py [OUT]        (default: dist)

``secfed-*.whl`` and ``secfed-*.tar.gz`` (equal bytes wherever this is run with the pinned setuptools),
``requirements.txt`` (pins with the hashes of the files that pip chooses on this platform; asks the index that
pip asks), ``sbom.cdx.json`` (CycloneDX 1.6), ``provenance.json`` (in-toto statement, SLSA provenance 1.0) and
``SHA256SUMS``. ``--offline`` leaves out the requirements. The wheel is tried first: ``try_wheel.py``.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import importlib.metadata
import io
import json
import os
import platform
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / ".ci")]

from try_wheel import try_wheel  # noqa: E402

from secfed.crypto.identity import grouped  # noqa: E402
from secfed.storage.code_digest import code_digest  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", nargs="?", type=Path, default=Path("dist"))
    parser.add_argument("--offline", action="store_true", help="no requirements.txt: that needs an index")
    asked = parser.parse_args()
    if git("status", "--porcelain"):
        sys.exit(
            "There are changes that are not committed. A release is made of a commit: commit or stash them."
        )
    commit, epoch = git("rev-parse", "HEAD"), int(git("log", "-1", "--format=%ct"))
    first, second = built(commit, epoch), built(commit, epoch)
    if first != second:
        names = ", ".join(name for name in first if first[name] != second.get(name))
        sys.exit(
            f"Two builds of {commit[:12]} differ: {names}. Is setuptools the pinned version (make setup)?"
        )
    asked.out.mkdir(parents=True, exist_ok=True)
    written = dict(first)
    wheel = next(name for name in first if name.endswith(".whl"))
    (asked.out / wheel).write_bytes(first[wheel])
    print("The wheel in a new environment:")
    told = try_wheel((asked.out / wheel).resolve())
    if not told.endswith(f"build {grouped(build_of(first[wheel])[:16])}"):
        sys.exit(f"{wheel}: installed, it is {told!r}, which is not what was built.")
    hashes: dict[str, str] = {}
    if not asked.offline:
        hashes = locked(asked.out / wheel)
        lines = [f"{name}=={version()[name]} --hash={sha}\n" for name, sha in sorted(hashes.items())]
        written["requirements.txt"] = "".join(lines).encode()
    written["sbom.cdx.json"] = pretty(sbom(wheel.split("-")[1], hashes, epoch))
    written["provenance.json"] = pretty(provenance(first, build_of(first[wheel]), commit, epoch))
    sums = [f"{sha256(data)}  {name}\n" for name, data in sorted(written.items())]
    written["SHA256SUMS"] = "".join(sums).encode()
    for name, data in written.items():
        (asked.out / name).write_bytes(data)
        print(asked.out / name)


def git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def built(commit: str, epoch: int) -> dict[str, bytes]:
    """Wheel and source distribution of a commit, by name; nothing that is not committed can get in."""
    with tempfile.TemporaryDirectory(prefix="secfed-release-") as folder:
        tree = Path(folder) / "tree"
        tree.mkdir()
        archive = subprocess.run(["git", "archive", commit], cwd=ROOT, check=True, capture_output=True).stdout
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            tar.extractall(tree, filter="tar")
        return distributions(tree, epoch)


def distributions(tree: Path, epoch: int) -> dict[str, bytes]:
    """Build a tree; times, owners and modes in the results depend on ``epoch`` and the tree alone."""
    environment = os.environ | {"SOURCE_DATE_EPOCH": str(epoch), "PYTHONHASHSEED": "0"}
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", "made", "."]
    done = subprocess.run(
        command, cwd=tree, env=environment, umask=0o022, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        sys.exit(done.stdout + done.stderr)
    made = {path.name: path.read_bytes() for path in (tree / "made").iterdir()}
    return {
        name: normal(data, epoch) if name.endswith(".gz") else data for name, data in sorted(made.items())
    }


def normal(sdist: bytes, epoch: int) -> bytes:
    """In one order, with one time and no owners: setuptools keeps those of the files."""
    out = io.BytesIO()
    with tarfile.open(fileobj=io.BytesIO(sdist)) as old, tarfile.open(fileobj=out, mode="w") as new:
        for member in sorted(old.getmembers(), key=lambda member: member.name):
            member.mtime, member.uid, member.gid, member.uname, member.gname = epoch, 0, 0, "", ""
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            member.pax_headers = {}
            new.addfile(member, old.extractfile(member) if member.isfile() else None)
    return gzip.compress(out.getvalue(), mtime=epoch)


def version() -> dict[str, str]:
    """The pins."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return dict(line.split("==") for line in lines if "==" in line and not line.startswith("#"))


def locked(wheel: Path) -> dict[str, str]:
    """The hash of the file that pip would install of every package that the wheel and its extras need."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"]
        target = [f"{wheel}[{','.join(extras())}]", "--constraint", str(ROOT / "constraints.txt")]
        subprocess.run([*command, "--report", str(report), *target], check=True)
        found = json.loads(report.read_text())["install"]
    names = {canonical(name): name for name in version()}
    return {
        names[canonical(one["metadata"]["name"])]: "sha256:"
        + one["download_info"]["archive_info"]["hashes"]["sha256"]
        for one in found
        if canonical(one["metadata"]["name"]) in names
    }


def extras() -> list[str]:
    """Those that somebody may install to run secfed: all but the tools."""
    with (ROOT / "pyproject.toml").open("rb") as stream:
        return sorted(tomllib.load(stream)["project"]["optional-dependencies"].keys() - {"dev", "docs"})


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def sbom(secfed: str, hashes: dict[str, str], epoch: int) -> dict[str, Any]:
    """Every pinned package, as CycloneDX 1.6: https://cyclonedx.org/docs/1.6/json/."""
    purl = f"pkg:pypi/secfed@{secfed}"
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "timestamp": moment(epoch),
            "component": {
                "type": "application",
                "bom-ref": purl,
                "name": "secfed",
                "version": secfed,
                "purl": purl,
            },
        },
        "components": [component(name, number, hashes) for name, number in sorted(version().items())],
    }


def component(name: str, number: str, hashes: dict[str, str]) -> dict[str, Any]:
    purl = f"pkg:pypi/{canonical(name)}@{number}"
    found: dict[str, Any] = {
        "type": "library",
        "bom-ref": purl,
        "name": name,
        "version": number,
        "purl": purl,
    }
    if stated := licence(name):
        found["licenses"] = [stated]
    if name in hashes:
        found["hashes"] = [{"alg": "SHA-256", "content": hashes[name].removeprefix("sha256:")}]
    return found


def licence(name: str) -> dict[str, Any] | None:
    """As the installed package states it; None for one that is not installed here."""
    try:
        metadata = importlib.metadata.metadata(name)
    except importlib.metadata.PackageNotFoundError:
        return None
    if expression := metadata.get("License-Expression"):
        return {"expression": expression}
    classifiers = [text for text in metadata.get_all("Classifier") or [] if text.startswith("License")]
    names = [text.rpartition("::")[2].strip() for text in classifiers]
    stated = "; ".join(names) or (metadata.get("License") or "").partition("\n")[0]
    return {"license": {"name": stated}} if stated else None


def build_of(wheel: bytes) -> str:
    """What ``secfed --version`` shows the beginning of, once the wheel is installed."""
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(io.BytesIO(wheel)) as archive:
        archive.extractall(folder)
        return code_digest(Path(folder) / "secfed")


def provenance(made: dict[str, bytes], build: str, commit: str, epoch: int) -> dict[str, Any]:
    """How the distributions came about: https://slsa.dev/spec/v1.0/provenance. Nobody has signed it."""
    tools = {name: importlib.metadata.version(name) for name in ("build", "setuptools")}
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": name, "digest": {"sha256": sha256(data)}} for name, data in made.items()],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": "make release",
                "externalParameters": {"commit": commit, "SOURCE_DATE_EPOCH": epoch},
                "internalParameters": {"secfedBuild": build, "python": platform.python_version(), **tools},
                "resolvedDependencies": [{"digest": {"gitCommit": commit}}],
            },
            "runDetails": {"builder": {"id": f"{platform.system()} {platform.machine()}"}},
        },
    }


def moment(epoch: int) -> str:
    return datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def pretty(content: dict[str, Any]) -> bytes:
    return (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode()


if __name__ == "__main__":
    main()
