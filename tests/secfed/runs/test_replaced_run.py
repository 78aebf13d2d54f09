"""``--overwrite``: the earlier run is whole until the new one is, wherever the command ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from secfed.errors import ConfigError
from secfed.records.chain_file import ChainFile
from secfed.runs.replaced_run import replacing


def transcript(**settings: bool) -> str:
    """The first two records, as far as a folder is known by them."""
    return "".join(json.dumps({"body": body}) + "\n" for body in ({"study": "one"}, settings))


def earlier(tmp_path: Path) -> Path:
    out = tmp_path / "run"
    (out / "sites" / "va").mkdir(parents=True)
    (out / "sites" / "va" / "transcript.jsonl").write_text("old")
    (out / "run.json").write_text("old")
    (out / "roster.json").write_text("old")
    (out / "transcript.jsonl").write_text(transcript(simulated=True))
    (out / "sites" / "va" / "patients.csv").write_text("theirs")
    (out / "notes.txt").write_text("theirs")
    return out


def files(folder: Path) -> dict[str, str]:
    return {str(p.relative_to(folder)): p.read_text() for p in sorted(folder.rglob("*")) if p.is_file()}


NEW = {"notes.txt": "theirs", "run.json": "new", "sites/va/patients.csv": "theirs"}
NEW["transcript.jsonl"] = transcript(simulated=True)


def write_new(folder: Path, run: str = "new") -> None:
    (folder / "run.json").write_text(run)
    (folder / "transcript.jsonl").write_text(transcript(simulated=True))


def test_the_new_run_takes_the_place_and_what_no_run_writes_stays(tmp_path: Path) -> None:
    out = earlier(tmp_path)
    with replacing(out) as folder:
        assert folder != out
        write_new(folder)
        assert files(out)["run.json"] == "old"
    assert files(tmp_path) == {f"run/{name}": text for name, text in NEW.items()}
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_run_that_another_command_is_writing_stays(tmp_path: Path) -> None:
    out = earlier(tmp_path)
    before = files(out)
    with (
        ChainFile(out / "transcript.jsonl", synced=False),
        pytest.raises(ConfigError, match="another process is writing"),
        replacing(out),
    ):
        pass
    assert files(out) == before


def test_an_error_leaves_the_earlier_run_whole_and_nothing_else(tmp_path: Path) -> None:
    out = earlier(tmp_path)
    before = files(tmp_path)

    def interrupted() -> None:
        with replacing(out) as folder:
            write_new(folder)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert files(tmp_path) == before


def test_a_kill_before_the_first_rename_or_after_it_is_made_good_by_the_next_call(tmp_path: Path) -> None:
    out = earlier(tmp_path)
    (tmp_path / ".run.new" / "figures").mkdir(parents=True)  # killed while it ran
    (tmp_path / ".run.new" / "figures" / "x.svg").write_text("half")
    with replacing(out) as folder:
        assert not any(folder.iterdir())
        write_new(folder)
    assert files(out) == NEW
    out.rename(tmp_path / ".run.old")  # killed between the two renames
    (tmp_path / ".run.new").mkdir()
    write_new(tmp_path / ".run.new", "newer")
    with pytest.raises(KeyboardInterrupt), replacing(out):
        raise KeyboardInterrupt
    assert files(tmp_path) == {f"run/{name}": text for name, text in (NEW | {"run.json": "newer"}).items()}


def test_two_commands_do_not_replace_one_run(tmp_path: Path) -> None:
    out = earlier(tmp_path)
    with replacing(out) as folder:
        with pytest.raises(ConfigError, match="another command") as caught, replacing(out):
            pass
        assert caught.value.remedy
        write_new(folder)
    assert files(out) == NEW


@pytest.mark.parametrize(
    "theirs",
    [
        {"roster.json": "", "ca/key.pem": ""},  # a consortium
        {"roster.json": "", "site/identity.key": ""},  # a hospital
        {"transcript.jsonl": transcript(), "run.json": ""},  # a run between hospitals
        {"transcript.jsonl": "half a record", "work": ""},  # a hospital's study
    ],
)
def test_what_no_simulation_wrote_is_refused_and_stays(tmp_path: Path, theirs: dict[str, str]) -> None:
    for name, text in theirs.items():
        (tmp_path / "out" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "out" / name).write_text(text)
    with pytest.raises(ConfigError, match="holds none"), replacing(tmp_path / "out"):
        pass
    assert files(tmp_path / "out") == theirs


def test_a_simulation_that_was_killed_at_once_is_replaced(tmp_path: Path) -> None:
    out = tmp_path / "run"
    (out / "sites").mkdir(parents=True)
    (out / "roster.json").write_text("old")
    (out / "transcript.jsonl").write_text("half a record")
    with replacing(out) as folder:
        write_new(folder)
    assert files(out) == {name: NEW[name] for name in ("run.json", "transcript.jsonl")}


def test_folders_of_others_move_as_they_are(tmp_path: Path) -> None:
    out = earlier(tmp_path)
    (out / "keys").mkdir(mode=0o700)
    (out / "keys" / "mine").write_text("theirs")
    with replacing(out) as folder:
        write_new(folder)
    assert (out / "keys").stat().st_mode & 0o777 == 0o700
    assert files(out) == {**NEW, "keys/mine": "theirs"}


def test_a_folder_without_a_run_is_refused_and_a_new_one_is_made(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("theirs")
    with pytest.raises(ConfigError, match="holds none"), replacing(tmp_path):
        pass
    with replacing(tmp_path / "fresh") as folder:
        assert folder == tmp_path / "fresh"
        assert folder.is_dir()
