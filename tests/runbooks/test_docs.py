"""What runbooks may use is documented, name by name."""

from typing import get_args

from runbooks.predicates import Predicate
from runbooks.template import PARAMETERS
from tests.shared_data import ROOT

TEXT = (ROOT / "docs" / "runbooks.md").read_text(encoding="utf-8")


def test_every_parameter_is_documented() -> None:
    for name in PARAMETERS:
        assert f"`${name}`" in TEXT, name


def test_every_predicate_is_documented() -> None:
    union = get_args(Predicate)[0]
    names = [get_args(model.model_fields["name"].annotation)[0] for model in get_args(union)]
    assert len(names) >= 10
    for name in names:
        assert f"`{name}`" in TEXT, name


def test_every_route_is_documented() -> None:
    from runbooks.api_description import description

    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    for path in description("x")["paths"]:
        assert path in text, path
