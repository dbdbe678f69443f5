"""pagewatch.toml: defaults, and one line with file, line and field for every mistake."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.settings import Settings, SettingsError, SourceSettings
from collectors.toml_places import line_of

FILE = Path("pagewatch.toml")


def mistake(text: str) -> str:
    with pytest.raises(SettingsError) as caught:
        Settings.parse(text, FILE, {})
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_without_a_file_everything_has_a_default(tmp_path: Path) -> None:
    loaded = Settings.load(None, {"HOME": str(tmp_path)})
    assert loaded.slo.time_to_first_token.threshold_seconds == 2.5
    assert loaded.slo.inter_token_latency.threshold_seconds == 0.1
    assert loaded.slo.time_to_first_token.objective == 0.95
    assert loaded.identity.replica == ("instance",)
    assert loaded.identity.rank == "engine"
    assert loaded.server.address == "127.0.0.1"
    assert loaded.path is None


def test_the_file_is_found_by_argument_then_environment_then_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "home/.config/pagewatch").mkdir(parents=True)
    (tmp_path / "home/.config/pagewatch/pagewatch.toml").write_text("[server]\nport = 1001\n")
    (tmp_path / "named.toml").write_text("[server]\nport = 1002\n")
    (tmp_path / "given.toml").write_text("[server]\nport = 1003\n")
    environment = {"HOME": str(tmp_path / "home")}
    assert Settings.load(None, environment).server.port == 1001
    (tmp_path / "pagewatch.toml").write_text("[server]\nport = 1004\n")
    assert Settings.load(None, environment).server.port == 1004
    environment["PAGEWATCH_CONFIG"] = str(tmp_path / "named.toml")
    assert Settings.load(None, environment).server.port == 1002
    assert Settings.load(tmp_path / "given.toml", environment).server.port == 1003


def test_a_named_file_that_is_missing_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="no such configuration file"):
        Settings.load(tmp_path / "nothing.toml", {})


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("[engine]\n\nseets = 3\n", 3, "engine.seets: no such setting"),
        ("[enigne]\nseats = 3\n", 1, "enigne: no such setting"),
        ('[[source]]\nname = "a"\nuri = "http://a"\n', 3, "source[0].uri: no such setting"),
        ("[engine]\nseats = 0\n", 2, "engine.seats"),
        ("[engine]\nseats = 'many'\n", 2, "engine.seats"),
        ("desired_replicas = -1\n", 1, "desired_replicas"),
        ("[slo.time_to_first_token]\nthreshold_seconds = 2.4\n", 1, "not a bucket edge; take 1 or 2.5"),
        ("[slo]\ninter_token_latency = { threshold_seconds = 0.12 }\n", 2, "not a bucket edge; take 0.1 or 0.15"),
        ("[slo.time_to_first_token]\nthreshold_seconds = 2.5\nobjective = 0.93\n", 3, "at least 93.06 %"),
        ("[slo.time_to_first_token]\nthreshold_seconds = 2.5\nobjective = 1.0\n", 3, "objective"),
        ("[scope]\n'not a label' = 'x'\n", 1, "scope"),
        ("[scope]\n__name__ = 'up'\n", 1, "scope"),
        ("[[source]]\nname = 'a'\nurl = 'http://u:hunter2@x'\n", 3, "source[0].url: the address holds a user or password"),
        ("[[source]]\nname='a'\nurl='http://x'\n\n[[source]]\nname='b'\nurl='http://y'\n[source.auth]\nusername='u'\n", 8, "source[1].auth"),
        ("[[source]]\nname='a'\nurl='http://x'\n[[source]]\nname='a'\nurl='http://y'\n", 1, "two sources are named 'a'"),
        ("[[source]]\nname='a'\nurl='http://x'\n[source.headers]\nAuthorization='Bearer hunter2'\n", 4, "is a secret"),
        ("[[source]]\nname='a'\nurl='http://x'\nheaders={'X-Scope-OrgID'=\"a\\r\\nEvil: 1\"}\n", 4, "line break"),
        ("[[source]]\nname='a'\nurl='http://x?dedup=true'\n", 3, "put them under [source.params]"),
        ("[[source]]\nname='a'\nurl='http://x'\ntimeout_seconds=0\n", 4, "source[0].timeout_seconds"),
        ("[alerts.severity]\nwaiting_growth = 'shout'\n", 2, "alerts.severity.waiting_growth"),
        ("[store]\nretention = 'long'\n", 2, "store.retention"),
        ("[server]\nbase_path = '/../etc'\n", 2, "server.base_path"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_with_its_line_and_field(text: str, line: int, words: str) -> None:
    message = mistake(text)
    assert message.startswith(f"pagewatch.toml:{line}: ")
    assert words in message
    assert "hunter2" not in message


def test_broken_toml_is_named_with_its_line() -> None:
    assert "line 2" in mistake("[engine]\nseats =\n")


def test_objectives_that_a_fast_burn_can_reach_are_taken() -> None:
    loaded = Settings.parse("[slo.time_to_first_token]\nthreshold_seconds = 5.0\nobjective = 0.9306\n", FILE, {})
    assert 1 / (1 - loaded.slo.time_to_first_token.objective) >= 14.4


def test_secrets_come_from_environment_or_file_and_are_not_shown(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("hunter2\n")
    text = f"""
[[source]]
name = "file"
url = "http://x"
auth = {{ bearer_file = "{token}" }}
[[source]]
name = "env"
url = "http://x"
auth = {{ username = "u", password_env = "SECRET" }}
"""
    loaded = Settings.parse(text, FILE, {"SECRET": "hunter3"})
    by_file, by_env = loaded.source
    assert by_file.secret("", by_file.auth.bearer_file, "bearer").get_secret_value() == "hunter2"  # type: ignore[union-attr]
    assert by_env.secret("SECRET", None, "password").get_secret_value() == "hunter3"  # type: ignore[union-attr]
    assert "hunter" not in repr(loaded) + str(loaded) + loaded.model_dump_json()


def test_a_secret_that_is_missing_is_named_when_it_is_wanted(tmp_path: Path) -> None:
    source = Settings.parse("[[source]]\nname='a'\nurl='http://x'\nauth={bearer_env='NOPE'}\n", FILE, {}).source[0]
    with pytest.raises(SettingsError, match="source a: bearer_env names NOPE, which is not set"):
        source.secret("NOPE", None, "bearer")
    with pytest.raises(SettingsError, match="cannot be read"):
        source.secret("", tmp_path / "nothing", "bearer")


def test_user_and_password_of_an_address_leave_it() -> None:
    source = SourceSettings.for_address("http://us%40er:hunter2@host:9090/prefix?dedup=true&x=1&x=2#frag")
    assert source.url == "http://host:9090/prefix"
    assert source.params == {"dedup": "true", "x": ["1", "2"]}
    assert source.address_user == "us@er"
    assert source.address_password is not None
    assert "hunter2" not in repr(source) + source.model_dump_json()


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.sampled_from(["a", "b", "c"]), st.integers(0, 3)), max_size=8))
def test_every_key_is_found_on_the_line_where_it_stands(tables: list[tuple[str, int]]) -> None:
    lines, wanted, counts = [], [], dict[str, int]()
    for name, blank in tables:
        lines += [""] * blank + [f"[[{name}]]", "key = 1 # [[a]]"]
        wanted.append(((name, counts.get(name, 0), "key"), len(lines)))
        counts[name] = counts.get(name, 0) + 1
    for place, line in wanted:
        assert line_of("\n".join(lines), place) == line
