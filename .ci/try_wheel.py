"""What a wheel does in a new environment, away from the checkout.

    python .ci/try_wheel.py WHEEL

The environment holds the wheel alone. Its dependencies are those of the Python that runs this, by a path
file: nothing is downloaded, and what only the checkout has is missed. Every command must end well.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tempfile
import time
import venv
from pathlib import Path

STUDY, OWN = "examples/breast-cancer.toml", "examples/bring-your-own/study.toml"
COMMANDS = (
    "examples",
    "examples copy breast-cancer bring-your-own three-hospitals",
    f"simulate {STUDY} --out run",
    f"simulate {OWN}",
    "audit verify run",
    "audit report run --out report.html",
    "attack --json",
    "new model mine",
    "simulate mine/study.toml",
    "policy from examples/three-hospitals/study.toml",
    "site init site --name hospital-1",
)


def main() -> None:
    """Try the wheel that is named; exit status 1 where something does not work."""
    if len(sys.argv) != 2:
        sys.exit("usage: python .ci/try_wheel.py WHEEL")
    print(try_wheel(Path(sys.argv[1]).resolve(strict=True)))


def try_wheel(wheel: Path) -> str:
    """Install a wheel, run every command; what ``secfed --version`` says there.

    ``SystemExit``: a command failed, or code from elsewhere ran.
    """
    with tempfile.TemporaryDirectory(prefix="secfed-wheel-") as name:
        folder = Path(name).resolve()
        venv.create(folder / "venv", with_pip=False)
        python, secfed = folder / "venv" / "bin" / "python", folder / "venv" / "bin" / "secfed"
        packages = Path(_said([str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]))
        pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-index"]
        _said([*pip, "--no-deps", "--disable-pip-version-check", str(wheel)])
        (packages / "dependencies.pth").write_text(f"{sysconfig.get_path('purelib')}\n", encoding="utf-8")
        work = folder / "work"
        work.mkdir()
        where = Path(_said([str(python), "-c", "import secfed; print(secfed.__file__)"], work)).resolve()
        if packages.resolve() not in where.parents:
            sys.exit(f"{wheel.name}: the environment imports secfed from {where}")
        for command in COMMANDS:
            began_s = time.monotonic()
            _said([str(secfed), *command.split()], work)
            print(f"    {time.monotonic() - began_s:5.1f} s  secfed {command}", flush=True)
        return _said([str(secfed), "--version"], work)


def _said(command: list[str], folder: Path | None = None) -> str:
    """What a command prints, run without anything of the caller's but where temporary files go."""
    kept = {key: value for key, value in os.environ.items() if key in ("TMPDIR", "LANG", "OMP_NUM_THREADS")}
    environment = {"PATH": os.defpath, "OMP_NUM_THREADS": "1", **kept}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(
            f"{' '.join(command)}: exit status {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-4000:]}"
        )
    return done.stdout.strip()


if __name__ == "__main__":
    main()
