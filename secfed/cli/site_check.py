"""``secfed site check``: can this hospital take part, and in this study? One line a question."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from secfed.cli.asking import passphrase_of
from secfed.cli.options import AsJson
from secfed.cli.site_folders import FolderOption, located
from secfed.deploy.enrolment import messages
from secfed.deploy.enrolment.site_folder import SiteFolder
from secfed.deploy.preflight.checks import PreflightCheck, exit_code, failed_with
from secfed.deploy.preflight.folder_check import flower_check, folder_checks
from secfed.errors import SecfedError
from secfed.storage import private_files
from secfed.terminal.consoles import print_json, say_check, stdout

if TYPE_CHECKING:
    from secfed.deploy.preflight.study_check import StudyCheck  # needs torch


def check(
    study_file: Annotated[
        Path | None, typer.Argument(metavar="[STUDY.toml]", help="Also check this study.", show_default=False)
    ] = None,
    folder: FolderOption = Path(),
    offline: Annotated[bool, typer.Option("--offline", help="Leave the network alone.")] = False,
    as_json: AsJson = False,
) -> None:
    """Check folder, disk, and the way to the aggregator; with a study, also policy, data and budget.

    Changes nothing: it pays, approves and writes nothing, and the study centre does not take this site for
    being there. Exits with 0 if all is well, else with the code of the first line that is not.
    """
    site = SiteFolder(folder)
    checks = _checks(site, study_file, offline)
    located_checks = (replace(item, remedy=located(item.remedy, folder)) for item in checks)
    if as_json:
        answers = list(located_checks)
        print_json([asdict(item) for item in answers])
    else:
        answers = list(_shown(located_checks))
    raise typer.Exit(exit_code(answers))


def _checks(site: SiteFolder, study_file: Path | None, offline: bool) -> Iterator[PreflightCheck]:
    now = messages.utc_now()
    checks, material = folder_checks(site, lambda: passphrase_of(*site.key_paths), now)
    yield from checks
    study: StudyCheck | None = None
    unread: SecfedError | None = None
    if study_file is not None:
        from secfed.deploy.preflight.study_check import StudyCheck

        try:
            study = StudyCheck(site, private_files.read(study_file, "a study"), now)
        except SecfedError as error:
            unread = error
    try:
        joined = site.consortium()
    except SecfedError:
        joined = None  # the lines of certificate and CA say what to do
    if site.flower_socket is not None:
        yield flower_check(site.flower_socket)
    elif not offline and joined is not None:
        from secfed.deploy.preflight.network_probe import network_checks

        address, proxy, known = site.address(), site.settings.aggregator.proxy, site.pinned_or_none()
        wanted = "" if study is None else study.id

        def roster_of(study: str) -> bytes:
            return b"" if known is None else site.roster_of(study, known.roster).digest

        yield from network_checks(
            address, proxy, joined[1], material, now, wanted=wanted, roster_of=roster_of
        )
    if unread is not None:
        yield failed_with("study", unread)
    if study is not None:
        yield from study.checks()


def _shown(checks: Iterable[PreflightCheck]) -> Iterator[PreflightCheck]:
    """Print each as it comes: some take seconds."""
    marks = {True: ("✓", "green"), False: ("✗", "bold red"), None: ("-", "dim")}
    console = stdout()
    for item in checks:
        mark = ("!", "yellow") if item.ok and item.remedy else marks[item.ok]
        say_check(console, mark, f"{item.name:<12} ", item.detail, item.remedy)
        yield item
