"""docs/capsule.md names every field of the manifest and every format."""

from __future__ import annotations

import re

from collectors.capsule.convert import FORMATS
from collectors.capsule.manifest import Body, Manifest, Mark, Member, Redaction, Replica, TimeTable
from tests.shared_data import ROOT


def test_every_field_and_format_is_documented() -> None:
    text = (ROOT / "docs" / "capsule.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([a-z_0-9-]+)`", text))
    fields = {field.alias or name for name, field in Manifest.model_fields.items()}
    for part in (Body, Mark, Member, Redaction, Replica, TimeTable):
        fields |= set(part.model_fields)
    assert fields - named == set()
    assert set(FORMATS) - named == set()
