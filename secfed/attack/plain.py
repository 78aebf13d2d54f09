"""What ``plain`` protects from: nothing. It is here so that a table shows the difference."""

from __future__ import annotations

from typing import Final

from secfed.attack.attack import AttackSetting, attack, attacks_of
from secfed.attack.evidence import Evidence
from secfed.crypto.messages import Upload
from secfed.protection.plain import PlainSite


@attack("read-upload", "keeps an upload and reads the update in it", on="plain", limit="What each party sees")
def _read_upload(setting: AttackSetting) -> Evidence:
    consortium = setting.consortium()
    victim = consortium.names[0]
    site = PlainSite(consortium.contribution(victim))
    upload = Upload.decode(bytes(site.handle(consortium.specification().encode())))
    return Evidence(consortium.shape, consortium.updates[victim], consortium.integers(upload))


PLAIN: Final = attacks_of(vars())
