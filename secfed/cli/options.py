"""Parameters that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="For programs.")]
OnlyJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]
StudyFile: TypeAlias = Annotated[
    Path, typer.Argument(metavar="STUDY.toml", help="The study file.", show_default=False)
]
NewFolder: TypeAlias = Annotated[
    Path, typer.Argument(metavar="DIR", help="A new folder.", show_default=False)
]
NewPassphrase: TypeAlias = Annotated[bool, typer.Option("--passphrase", help="Encrypt the private keys.")]
Compared: TypeAlias = Annotated[
    bool, typer.Option("--yes", help="The fingerprints have been compared; do not ask.")
]
Params: TypeAlias = Annotated[int, typer.Option("--params", min=1, help="Elements of the vector.")]
