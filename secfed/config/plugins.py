"""A user's own code: ``name = "package.module:factory"`` becomes a function, its options are checked.

Security: a name decides which module is imported, and importing runs code. A study file from elsewhere
must therefore be parsed with the list of names that the site's policy permits
(:meth:`secfed.study.study.Study.parse`, ``own_code``). Folders become importable only through
:func:`allow_imports`, and never before what is installed.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Final

from secfed.config.schema import suggestion
from secfed.config.torchvision_repair import mending_torchvision
from secfed.errors import EXTRAS, ConfigError, SecfedError, installing

_in_full: ContextVar[bool] = ContextVar("own code's errors in full", default=False)
_INSTALLED: Final = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)


def is_user_code(name: str) -> bool:
    """Whether a name points to a user's own factory."""
    return ":" in name


def allow_imports(*folders: Path) -> None:
    """Let modules beside the study file or in the working directory be imported.

    The folders go to the end of the search path, so that a stray file cannot replace an installed
    module.
    """
    for folder in folders:
        entry = str(folder.resolve())
        if entry not in sys.path:
            sys.path.append(entry)


def load_factory(name: str, key: str) -> Callable[..., Any]:
    """Import ``package.module:factory``; ``key`` is the dotted key of the study that holds the name.

    ConfigError: not of that form, the module or the factory in it cannot be found, or importing it fails.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{key}: {name!r} is not of the form package.module:factory",
            remedy='write for example name = "my_hospital.models:small_net"',
        )
    module_name, _, attribute = name.partition(":")
    try:
        module = mending_torchvision(lambda: importlib.import_module(module_name))
    except ImportError as error:
        raise ConfigError(
            f"{key}: cannot import module {module_name!r} ({error})",
            remedy=_to_import(module_name, error),
        ) from error
    except SecfedError:
        raise
    except Exception as error:  # whatever is wrong in a user's file, a misplaced bracket included
        raise _failed(f"{key}: module {module_name!r} cannot be imported", module_name, error) from error
    factory = getattr(module, attribute, None)
    if factory is None:
        names = [item for item in vars(module) if not item.startswith("_")]
        raise ConfigError(
            f"{key}: module {module_name!r} has no {attribute!r}",
            remedy=suggestion(attribute, names, "it has: "),
        )
    if not callable(factory):
        raise ConfigError(f"{key}: {name!r} cannot be called", remedy="name a function or a class")
    return factory  # type: ignore[no-any-return]  # what a user's module holds has no static type


def make(name: str, key: str, *given: Any, **arguments: Any) -> Any:
    """Import a factory and call it.

    ConfigError: as :func:`load_factory`; or the factory failed: where and how, outside
    :func:`own_errors_in_full` without the text of its exception, which could quote a record.
    """
    factory = load_factory(name, key)
    try:
        return mending_torchvision(lambda: factory(*given, **arguments))
    except (SecfedError, OSError, MemoryError):
        raise  # these say what is wrong by themselves
    except Exception as error:
        raise _failed(f"{key}: {name!r} failed", name.partition(":")[0], error) from error


def source_of(name: str) -> str | None:
    """SHA-256 over the Python files beside a factory's module; None where there are no such files."""
    file = getattr(sys.modules.get(name.partition(":")[0]), "__file__", None)
    if file is None:
        return None
    files = sorted(Path(file).parent.glob("*.py"))
    digests = (f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()}\n" for path in files)
    return hashlib.sha256("".join(digests).encode()).hexdigest()


@contextmanager
def own_errors_in_full() -> Iterator[None]:
    """Inside, errors of own code are told with their text.

    Security: it could quote a record. For simulations only, whose records all belong to whoever runs them.
    """
    token = _in_full.set(True)
    try:
        yield
    finally:
        _in_full.reset(token)


@contextmanager
def own_code_errors(names: Sequence[str]) -> Iterator[None]:
    """What own code of a simulated study raises becomes a ConfigError with type, text, file and line.

    So does what secfed raises over what own code gave it, as long as it is no error of its own.
    """
    with own_errors_in_full():
        try:
            yield
        except (SecfedError, OSError, MemoryError):
            raise
        except Exception as error:
            if not names:
                raise
            place = own_place(error)
            if place is None:  # secfed's: with what own code gave it
                raise ConfigError(
                    f"{', '.join(names)}: what it gave cannot be used: {described(error)}",
                    remedy="secfed.testing.check_algorithm says more about an algorithm; "
                    "secfed --debug shows where it was used",
                ) from error
            message = f"own code ({', '.join(names)}) failed in {place}: {described(error)}"
            raise ConfigError(message, remedy="correct it there") from error


def described(error: BaseException) -> str:
    """Type and text of an error."""
    text = str(error).strip()
    if hasattr(error, "own_place"):
        return text
    return f"{type(error).__name__}{f': {text}' if text else ''}"


def own_place(error: BaseException) -> str | None:
    """File and line of the last call that an error passed in code that is not installed; None without one."""
    place = getattr(error, "own_place", None)  # of a process that trains
    for frame, line in traceback.walk_tb(error.__traceback__):
        file = frame.f_code.co_filename
        ours = str(frame.f_globals.get("__name__")).partition(".")[0] == "secfed"
        if not ours and not file.startswith(("<", *_INSTALLED)):
            place = f"{Path(file).name}, line {line}"
    return place


def _failed(what: str, module: str, error: Exception) -> ConfigError:
    """The place is the last line of the user's module that was reached."""
    place = ""
    if isinstance(error, SyntaxError) and error.filename:
        place = f" in {Path(error.filename).name}, line {error.lineno}"
    for frame in traceback.extract_tb(error.__traceback__):
        if Path(frame.filename).stem == module.rpartition(".")[2]:
            place = f" in {Path(frame.filename).name}, line {frame.lineno}"
    if _in_full.get():
        return ConfigError(f"{what}{place}: {described(error)}", remedy="correct it there")
    return ConfigError(
        f"{what} ({type(error).__name__}{place})",
        remedy="correct it there; import and call it in Python by itself to see the whole error",
    )


def _to_import(module: str, error: ImportError) -> str:
    """What makes a module importable that was not."""
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    if missing is not None and f"{module}.".startswith(f"{missing}."):
        file = module.replace(".", "/") + ".py"
        return f"put {file} beside the study file, or install the package that holds it; check the spelling"
    package = (missing or "").partition(".")[0]
    extra = next((extra for extra, packages in EXTRAS.items() if package in packages), None)
    if extra is not None:
        return f"{module!r} imports {package}; {installing(extra)}"
    if missing is not None:
        return f"install the package that holds {missing!r} into this environment; {module!r} imports it"
    return f"correct what {module!r} imports"


def check_arguments(
    factory: Callable[..., Any], given: int, arguments: Mapping[str, Any], where: str
) -> None:
    """Check the options of table ``where`` against the factory's signature, without calling it.

    secfed itself passes ``given`` positional arguments, the other keys of the table are ``arguments``.
    ConfigError: names the key that is unknown or missing.
    """
    try:
        signature = inspect.signature(factory)
    except (TypeError, ValueError):
        raise ConfigError(
            f"{where}.name: the factory has no readable signature", remedy="wrap it in a Python function"
        ) from None
    try:
        signature.bind(*range(given), **arguments)
    except TypeError as error:
        parameters = list(signature.parameters.values())
        by_keyword = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        accepted = {p.name: p for p in parameters[given:] if p.kind in by_keyword}
        for key in arguments:
            if key not in accepted:
                raise ConfigError(
                    f"{where}.{key}: the factory does not take this argument",
                    remedy=suggestion(key, accepted, "it takes: ")
                    if accepted
                    else "remove it; it takes none",
                ) from None
        for key, parameter in accepted.items():
            if parameter.default is inspect.Parameter.empty and key not in arguments:
                raise ConfigError(
                    f"{where}.{key}: is missing", remedy=f"add it to [{where}]; the factory needs it"
                ) from None
        raise ConfigError(
            f"{where}.name: the factory cannot be called as secfed calls it ({error})",
            remedy="see secfed.study.registry for the arguments it must take",
        ) from None
