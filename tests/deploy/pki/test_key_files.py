"""Private keys in files: permissions, passphrases, and errors that hold no secret."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from secfed.crypto.identity import Identity
from secfed.deploy.pki import key_files
from secfed.errors import ConfigError

SECRET = "correct horse battery"


@pytest.fixture
def quick_scrypt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_files, "_SCRYPT", {"n": 16, "r": 8, "p": 1})


def saved(folder: Path, secret: str | None = None) -> tuple[Path, bytes]:
    identity_key = Ed25519PrivateKey.generate()
    key_files.create_key(folder / "identity.key", identity_key, secret)
    return folder / "identity.key", identity_key.public_key().public_bytes_raw()


def test_an_identity_comes_back(tmp_path: Path) -> None:
    path, public = saved(tmp_path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert key_files.read_identity(path, "charite", None).public_bytes == public
    assert not key_files.is_encrypted(path)


def test_an_encrypted_identity_needs_its_passphrase_under_the_real_parameters(tmp_path: Path) -> None:
    path, public = saved(tmp_path, SECRET)
    assert key_files.is_encrypted(path)
    assert key_files.read_identity(path, "charite", SECRET).public_bytes == public
    assert key_files._SCRYPT["n"] * key_files._SCRYPT["r"] * 128 == 64 << 20


@pytest.mark.usefixtures("quick_scrypt")
@pytest.mark.parametrize("wrong", [None, "", "wrong passphrase", SECRET + "\n"])
def test_a_wrong_passphrase_is_refused_and_not_repeated(tmp_path: Path, wrong: str | None) -> None:
    path, _ = saved(tmp_path, SECRET)
    with pytest.raises(ConfigError, match="passphrase") as caught:
        key_files.read_identity(path, "charite", wrong)
    assert not wrong or wrong not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.usefixtures("quick_scrypt")
def test_the_raw_passphrase_does_not_open_the_pem_block(tmp_path: Path) -> None:
    """Otherwise the 2,048 rounds of the library would be all there is."""
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    path, _ = saved(tmp_path, SECRET)
    with pytest.raises(ValueError):
        load_pem_private_key(path.read_bytes(), SECRET.encode())


@pytest.mark.usefixtures("quick_scrypt")
def test_two_files_with_one_passphrase_share_nothing(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    one, _ = saved(tmp_path / "a", SECRET)
    two, _ = saved(tmp_path / "b", SECRET)
    assert one.read_bytes().splitlines()[0] != two.read_bytes().splitlines()[0]


def test_a_short_passphrase_is_refused_before_a_key_is_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="fewer than 12"):
        saved(tmp_path, "short")
    assert list(tmp_path.iterdir()) == []


def test_a_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path, _ = saved(tmp_path)
    path.chmod(0o640)
    with pytest.raises(ConfigError, match="other users"):
        key_files.read_identity(path, "charite", None)


def test_a_key_of_another_type_is_refused(tmp_path: Path) -> None:
    path, _ = saved(tmp_path)
    key_files.create_key(tmp_path / "tls.key", key_files.new_tls_key(), None)
    with pytest.raises(ConfigError, match="not an identity key"):
        key_files.read_identity(tmp_path / "tls.key", "charite", None)
    with pytest.raises(ConfigError, match="not a P-256 key"):
        key_files.read_tls_key(path, None)


def test_a_damaged_key_is_refused_without_quoting_it(tmp_path: Path) -> None:
    path, _ = saved(tmp_path)
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], lines[1][:-8], *lines[2:]]))
    with pytest.raises(ConfigError, match="not a private key") as caught:
        key_files.read_identity(path, "charite", None)
    assert lines[1][:20] not in str(caught.value)


class TestPassphraseSources:
    def write(self, folder: Path, text: bytes, mode: int = 0o600) -> dict[str, str]:
        path = folder / "passphrase"
        path.write_bytes(text)
        path.chmod(mode)
        return {key_files.PASSPHRASE_FILE: str(path)}

    def test_one_newline_is_not_part_of_it(self, tmp_path: Path) -> None:
        assert key_files.passphrase_from_file(self.write(tmp_path, b"correct horse \n")) == "correct horse "

    def test_without_the_variable_there_is_none(self) -> None:
        assert key_files.passphrase_from_file({}) is None

    @pytest.mark.parametrize(("text", "mode"), [(b"", 0o600), (b"\xff\xfe", 0o600), (b"good enough", 0o644)])
    def test_a_bad_file_is_refused(self, tmp_path: Path, text: bytes, mode: int) -> None:
        with pytest.raises(ConfigError):
            key_files.passphrase_from_file(self.write(tmp_path, text, mode))

    @pytest.mark.usefixtures("quick_scrypt")
    def test_a_person_is_asked_only_for_an_encrypted_key_and_only_without_a_file(
        self, tmp_path: Path
    ) -> None:
        plain, _ = saved(tmp_path)
        (tmp_path / "locked").mkdir()
        encrypted, _ = saved(tmp_path / "locked", SECRET)
        asked: list[str] = []

        def ask(question: str) -> str:
            asked.append(question)
            return SECRET

        assert key_files.passphrase_for(plain, ask=ask, environment={}) is None
        environment = self.write(tmp_path, b"from the file")
        assert key_files.passphrase_for(encrypted, ask=ask, environment=environment) == "from the file"
        assert asked == []
        assert key_files.passphrase_for(plain, encrypted, ask=ask, environment={}) == SECRET
        assert len(asked) == 1
        with pytest.raises(ConfigError, match="needs a passphrase"):
            key_files.passphrase_for(encrypted, environment={})


def test_an_identity_does_not_print_its_key() -> None:
    identity = Identity.generate("charite")
    assert identity.private_bytes().hex() not in repr(identity)
