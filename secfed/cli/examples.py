"""``secfed examples``: the studies that come with secfed, from a wheel as from a checkout."""

from __future__ import annotations

import ast
import re
import shutil
from dataclasses import asdict, dataclass
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Final

import typer

import secfed
from secfed.cli.options import OnlyJson
from secfed.config.schema import suggestion
from secfed.errors import ConfigError
from secfed.storage.atomic import unwritable_errors

examples_app = typer.Typer(invoke_without_command=True, help="List the examples, show one, copy some.")

_HOME: Final = "examples"  # what the commands in the files themselves call the folder
_MAIN: Final = ("study.toml", "README.md", "verify.py")  # of a folder: the file that is read first
_GROUPS: Final = {
    "simulate": "Studies: secfed simulate",
    "sweep": "Sweeps: secfed sweep",
    "analyse": "Statistics before training: secfed analyse",
    "": "Folders and scripts",
}
_NEEDS: Final = (  # what a file says -> what it needs
    (r"^#.*(SECFED_DATA|docs/data\.md|physionet)", "files"),
    (r"^#.*vision-language[],]", "vision-language"),
    (r"^# +secfed analyse", "analyse"),
    (r"^#.*python benchmarks/results", "checkout"),
)
_COMMAND: Final = re.compile(r"^# +(secfed (simulate|sweep|analyse) examples/\S+(?: \S+)*)", re.MULTILINE)
_LINE: Final = 100
_UNSAID: Final = {"bring-your-own": "A data set and a network of your own, in a file beside the study"}


@dataclass(frozen=True)
class Example:
    """One study, script or folder; ``kind`` is the command that runs it, where there is one."""

    name: str
    kind: str
    about: str
    needs: tuple[str, ...]
    command: str


@examples_app.callback()
def listing(context: typer.Context, as_json: OnlyJson = False) -> None:
    """List the examples: what each shows, and what it needs beside the core.

    [bold]Example:[/] secfed examples copy digits-cnn && secfed simulate examples/digits-cnn.toml
    """
    if context.invoked_subcommand is not None:
        return
    from rich.text import Text

    from secfed.terminal.consoles import print_json, say, stdout
    from secfed.terminal.tables import first_that_fits, new_table

    found = [_example(path) for path in _paths().values()]
    if as_json:
        print_json([asdict(example) for example in found])
        return
    console = stdout()
    for kind, title in _GROUPS.items():
        say(console, title, "bold")
        table = new_table("Name", "About", whole=("Name",))
        for example in found:
            if example.kind == kind:
                needs = f" [{', '.join(example.needs)}]" if example.needs else ""
                table.add_row(example.name, Text.assemble(example.about, (needs, "yellow")))
        console.print(first_that_fits(console, [table]))
        console.print()
    say(console, "In brackets: what it needs beside the core.")
    say(console, "  files      data sets that are no part of secfed (docs/data.md)")
    say(console, "  checkout   scripts of the repository")
    say(console, "  otherwise  an extra to be installed (docs/install.md)")
    say(console, "Read one: secfed examples show NAME. Take one: secfed examples copy NAME")


@examples_app.command()
def show(name: Annotated[str, typer.Argument(metavar="NAME", help="As the list names it.")]) -> None:
    """Print an example, every file of a folder.

    [bold]Example:[/] secfed examples show digits-cnn
    """
    path = _found(name)
    files = _files(path)
    for file in files:
        if len(files) > 1:
            typer.echo(f"# ==> {_HOME}/{file.relative_to(path.parent).as_posix()}")
        typer.echo(file.read_text(encoding="utf-8"))


@examples_app.command()
def copy(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME...", help="As the list names them.", show_default=False),
    ] = None,
    to: Annotated[Path, typer.Option("--to", metavar="FOLDER", help="Where they go.")] = Path(_HOME),
    every: Annotated[bool, typer.Option("--all", help="All of them.")] = False,
) -> None:
    """Copy examples into a folder, to run and to change; nothing is overwritten.

    [bold]Example:[/] secfed examples copy digits-cnn && secfed simulate examples/digits-cnn.toml
    """
    from secfed.terminal.consoles import say, stdout

    if every == bool(names):
        raise ConfigError(
            "Which examples?", remedy="name some that `secfed examples` lists, or use --all alone"
        )
    paths = list(_paths().values()) if every else [_found(name) for name in dict.fromkeys(names or ())]
    for path in paths:
        if (to / path.name).exists():
            raise ConfigError(
                f"{to / path.name}: exists already", remedy="nothing was copied; name a folder with --to"
            )
    console = stdout()
    for path in paths:
        with unwritable_errors(to):
            for file in _files(path):
                target = to / file.relative_to(path.parent)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, target)  # not its mode: an installed file may be read-only
                if file.suffix == ".sh":
                    target.chmod(target.stat().st_mode | 0o111)
        example = _example(path)
        hint = example.command.replace(f"{_HOME}/", f"{to.as_posix()}/", 1) or "see what is in it"
        say(console, f"{to / path.name}: {hint}")


def folder() -> Path:
    """Where the examples lie: in the installed package, or beside it in a checkout.

    Raises:
        ConfigError: neither is there.
    """
    package = Path(secfed.__file__).resolve().parent
    checkout = package.parent
    for found, proof in ((package / _HOME, package), (checkout / _HOME, checkout / "pyproject.toml")):
        if found.is_dir() and proof.exists():
            return found
    raise ConfigError(
        "the examples were not installed", remedy="install secfed from its wheel, or a checkout"
    )


def _paths() -> dict[str, Path]:
    """Name -> file or folder, in the order of the names."""
    found = (path for path in folder().iterdir() if path.name[0] not in "._")
    return {path.stem: path for path in sorted(found) if path.is_dir() or path.suffix in (".toml", ".py")}


def _found(name: str) -> Path:
    paths = _paths()
    stem = name.removeprefix(f"{_HOME}/").removesuffix(".toml").removesuffix(".py")
    if stem not in paths:
        raise ConfigError(f"there is no example {name!r}.", remedy=suggestion(stem, paths, "there are: "))
    return paths[stem]


def _files(path: Path) -> list[Path]:
    """A file, or those of a folder; the one to read first comes first."""
    if path.is_file():
        return [path]
    found = (file for file in path.rglob("*") if file.is_file() and "__pycache__" not in file.parts)
    return sorted(
        found, key=lambda file: (_MAIN.index(file.name) if file.name in _MAIN else len(_MAIN), file)
    )


def _example(path: Path) -> Example:
    main = _files(path)[0]
    text = main.read_text(encoding="utf-8")
    command = _COMMAND.search(text)
    if command is not None:
        kind, typed = command[2], command[1]
    elif main.suffix == ".toml":
        kind, typed = "simulate", f"secfed simulate {_HOME}/{main.relative_to(path.parent).as_posix()}"
    else:
        kind, typed = "", f"read {_HOME}/{main.relative_to(path.parent).as_posix()}"
    needs = tuple(
        name for pattern, name in _NEEDS if main.suffix == ".toml" and re.search(pattern, text, re.M)
    )
    return Example(path.stem, kind, _UNSAID.get(path.stem) or _about(main, text), needs, typed)


def _about(file: Path, text: str) -> str:
    """The first sentence of the comment, docstring or page, as far as one line has room."""
    if file.suffix == ".py":
        said = ast.get_docstring(ast.parse(text)) or ""
    elif file.suffix == ".md":
        said = text.lstrip("# ").partition("\n")[0]
    else:
        comment = takewhile(lambda line: line.startswith("# ") and line[2] != " ", text.splitlines())
        said = " ".join(line[2:] for line in comment)
    sentence = " ".join(said.partition("\n\n")[0].split()).replace("``", "")
    for end in (r"[.;](?: |$)| \(|: README", r": ", r", "):
        if len(sentence := re.split(end, sentence)[0]) <= _LINE:
            break
    return sentence
