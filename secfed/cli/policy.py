"""``secfed policy``: what a hospital permits, proposed from a study."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from secfed.cli.options import StudyFile
from secfed.storage import private_files

policy_app = typer.Typer(no_args_is_help=True, help="Propose what a hospital permits.")


@policy_app.callback()
def _commands() -> None:
    """Keeps ``from`` a command of its own name."""


@policy_app.command("from")
def from_study(
    study_file: StudyFile,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help="Write it to this new file instead of printing it."),
    ] = None,
) -> None:
    """Print a policy that permits exactly this study, for an administrator to read and narrow.

    [bold]Example:[/] secfed policy from heart-1.toml --out site/proposal.toml
    """
    from secfed.deploy.policy.proposal import proposal
    from secfed.study.study import Study

    text = proposal(Study.load(study_file))
    if out is None:
        typer.echo(text, nl=False)
        return
    private_files.create(out, text.encode())
    typer.echo(f"Wrote {out}. Read every line, then make it the policy.toml of the site.")
