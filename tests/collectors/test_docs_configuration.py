"""docs/configuration.md: its example is valid, and no setting is missing from it."""

from __future__ import annotations

import re
from pathlib import Path

from pydantic import BaseModel

from collectors.settings import Auth, Settings, SourceSettings
from tests.shared_data import ROOT

TEXT = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")


def test_the_example_is_valid() -> None:
    example = "desired_replicas = 4\n" + "\n".join(re.findall(r"```toml\n(.*?)```", TEXT, re.DOTALL))
    loaded = Settings.parse(example, Path("docs/configuration.md"), {"API_KEY": "x"})
    assert loaded.source[0].auth.bearer_file is not None
    assert loaded.slo == Settings().slo
    assert loaded.server.model_copy(update={"api_token_env": ""}) == Settings().server


def names(model: type[BaseModel]) -> set[str]:
    found: set[str] = set()
    for name, field in model.model_fields.items():
        found.add(name)
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            found |= names(field.annotation)
    return found


def test_every_setting_is_documented() -> None:
    wanted = names(Settings) | names(SourceSettings) | names(Auth)
    assert {name for name in wanted if not re.search(rf"\b{name}\b", TEXT)} == set()
