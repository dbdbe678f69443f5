import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.instants import format_instant, parse_duration_ms, parse_instant_ms


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("1796006290", 1_796_006_290_000),
        ("1796006290.25", 1_796_006_290_250),
        ("2026-11-30T14:03:20Z", 1_796_047_400_000),
        ("2026-11-30T15:03:20+01:00", 1_796_047_400_000),
        ("2026-11-30T14:03:20.5Z", 1_796_047_400_500),
        (" 0 ", 0),
    ],
)
def test_instants_in_every_form(text: str, ms: int) -> None:
    assert parse_instant_ms(text) == ms


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("yesterday", "RFC 3339"),
        ("2026-11-30T14:03:20", "offset"),
        ("1796006290123", "milliseconds"),
        ("nan", "unix seconds"),
        ("inf", "unix seconds"),
        ("", "RFC 3339"),
    ],
)
def test_a_wrong_instant_says_what_is_understood(text: str, hint: str) -> None:
    with pytest.raises(ValueError, match=hint):
        parse_instant_ms(text)


@given(st.integers(0, 4_102_444_800_000))
def test_a_formatted_instant_reads_back(at_ms: int) -> None:
    assert parse_instant_ms(format_instant(at_ms)) == at_ms


@pytest.mark.parametrize(
    ("text", "ms"),
    [("90s", 90_000), ("1h30m", 5_400_000), ("500ms", 500), ("15", 15_000), ("1.5h", 5_400_000), ("2d", 172_800_000)],
)
def test_durations(text: str, ms: int) -> None:
    assert parse_duration_ms(text) == ms


@pytest.mark.parametrize("text", ["", "m", "5 minutes", "-5s", "0s", "5mm"])
def test_wrong_durations(text: str) -> None:
    with pytest.raises(ValueError, match=r"duration|no time"):
        parse_duration_ms(text)
