"""What the operator configured: `pagewatch.toml`, validated, with the line of every mistake.

Secrets are named by environment variable (`*_env`) or file (`*_file`) and read when a source is opened; they are kept as SecretStr and
never printed. The environment is passed in. Every setting has a default.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import parse_qs, unquote, urlsplit, urlunsplit

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)

from collectors.file_trouble import file_trouble
from collectors.instants import parse_duration_ms
from collectors.toml_places import line_of

FAST_BURN_FACTOR = 14.4
"""Page when an hour burns 2 % of a 30-day error budget: 0.02 * 720 h. Google SRE workbook, 'Alerting on SLOs', table 5-8."""
LOWEST_OBJECTIVE = 1 - 1 / FAST_BURN_FACTOR
"""0.9306: with every request bad, the burn rate is 1 / (1 - objective); below this it never reaches the factor."""

LABEL_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")

_UNION_TAG = re.compile(r"(constrained-)?(str|int|bool)|list\[str\]")

Duration = Annotated[str, Field(description="such as 30s, 6h or 2d")]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class SettingsError(Exception):
    """The configuration cannot be used. One line: file, line, field, what is wrong."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, str_strip_whitespace=True)


class Auth(_Part):
    """How a source is asked for access: a bearer token, or a user with a password."""

    bearer_env: str = ""
    bearer_file: Path | None = None
    username: str = ""
    password_env: str = ""
    password_file: Path | None = None

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        bearer = bool(self.bearer_env) + (self.bearer_file is not None)
        password = bool(self.password_env) + (self.password_file is not None)
        if bearer > 1 or password > 1:
            raise ValueError("give the secret by *_env or by *_file, not by both")
        if bearer and (password or self.username):
            raise ValueError("give a bearer token or a username with a password, not both")
        if password and not self.username:
            raise ValueError("a password needs a username")
        if self.username and not password:
            raise ValueError("a username needs password_env or password_file")
        return self


class SourceSettings(_Part):
    """One `[[source]]`: a server that answers the Prometheus query API, or a path to an incident file."""

    name: Annotated[str, Field(min_length=1)]
    url: Annotated[str, Field(min_length=1)]
    headers: dict[str, str] = {}
    headers_env: dict[str, str] = {}
    headers_file: dict[str, Path] = {}
    auth: Auth = Auth()
    ca_file: Path | None = None
    params: dict[str, str | bool | int | list[str]] = {}
    timeout_seconds: Annotated[float, Field(gt=0, le=600, allow_inf_nan=False)] = 10.0
    max_response_bytes: Annotated[int, Field(ge=1_000_000)] = 256_000_000
    _environment: Mapping[str, str] = PrivateAttr(default_factory=dict)
    _address_user: str = PrivateAttr(default="")
    _address_password: SecretStr | None = PrivateAttr(default=None)

    @field_validator("url")
    @classmethod
    def _no_password_in_url(cls, url: str) -> str:
        if "://" in url and (urlsplit(url).username is not None or urlsplit(url).password is not None):
            raise ValueError("the address holds a user or password; put them under [source.auth]")
        if "://" in url and (urlsplit(url).query or urlsplit(url).fragment):
            raise ValueError("the address holds parameters; put them under [source.params]")
        return url

    @field_validator("headers", "headers_env", "headers_file")
    @classmethod
    def _header_names(cls, headers: dict[str, Any]) -> dict[str, Any]:
        for name, value in headers.items():
            if not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name):
                raise ValueError(f"{name!r} is not a header name")
            if isinstance(value, str) and re.search(r"[\r\n\0]", value):
                raise ValueError(f"the value of header {name} holds a line break")
        return headers

    @field_validator("headers")
    @classmethod
    def _no_secret_in_headers(cls, headers: dict[str, str]) -> dict[str, str]:
        for name in headers:
            if name.lower() in {"authorization", "proxy-authorization", "cookie", "x-api-key"}:
                raise ValueError(f"{name} is a secret; name it under headers_env or headers_file")
        return headers

    @classmethod
    def for_address(cls, address: str) -> SourceSettings:
        """Settings of an address given on the command line: its user and password become basic auth, its query parameters.

        Raises SettingsError for text that is no address.
        """
        try:
            parts = urlsplit(address)
            host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname or ""
            place = host + (f":{parts.port}" if parts.port is not None else "")
        except ValueError:
            raise SettingsError("the address of the source cannot be read; write http://host:9090") from None
        clean = urlunsplit((parts.scheme, place, parts.path, "", ""))
        params: dict[str, str | bool | int | list[str]] = {
            name: values[0] if len(values) == 1 else list(values)
            for name, values in parse_qs(parts.query, keep_blank_values=True).items()
        }
        source = cls(name=clean, url=clean, params=params)
        if parts.username is not None or parts.password is not None:
            source._address_user = unquote(parts.username or "")
            source._address_password = SecretStr(unquote(parts.password or ""))
        return source

    @property
    def address_user(self) -> str:
        """User in the address that was given on the command line."""
        return self._address_user

    @property
    def address_password(self) -> SecretStr | None:
        """Password in the address that was given on the command line."""
        return self._address_password

    def secret(self, env: str, file: Path | None, field: str) -> SecretStr | None:
        """The secret that a pair of `*_env`, `*_file` settings names; None when neither is set. Raises SettingsError."""
        return _secret(env, file, f"source {self.name}: {field}", self._environment)


def _secret(env: str, file: Path | None, field: str, environment: Mapping[str, str]) -> SecretStr | None:
    if env:
        if not environment.get(env):
            raise SettingsError(f"{field}_env names {env}, which is not set in the environment")
        return SecretStr(environment[env])
    if file is not None:
        try:
            text = file.expanduser().read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "not text"
            raise SettingsError(f"{field}_file {file} cannot be read: {reason}") from None
        if not text:
            raise SettingsError(f"{field}_file {file} is empty")
        return SecretStr(text)
    return None


class Identity(_Part):
    """Which labels make a replica and a rank."""

    replica: Annotated[tuple[str, ...], Field(min_length=1)] = ("instance",)
    rank: str = "engine"

    @field_validator("replica")
    @classmethod
    def _labels(cls, labels: tuple[str, ...]) -> tuple[str, ...]:
        for label in labels:
            if not LABEL_NAME.fullmatch(label):
                raise ValueError(f"{label!r} is not a label name")
        return labels


class Objective(_Part):
    """A latency objective: this share of the observations at or under the threshold."""

    threshold_seconds: Positive
    objective: Annotated[float, Field(gt=0, lt=1)] = 0.95

    @field_validator("objective")
    @classmethod
    def _can_burn(cls, objective: float) -> float:
        if objective < LOWEST_OBJECTIVE:
            raise ValueError(
                f"a burn rate of {FAST_BURN_FACTOR} can never be reached with an objective of {objective:g}; "
                f"it needs at least {LOWEST_OBJECTIVE * 100:.2f} %"
            )
        return objective


class Slo(_Part):
    """Service level objectives; thresholds must be bucket edges, or the share under them is a guess."""

    time_to_first_token: Objective = Objective(threshold_seconds=2.5)
    inter_token_latency: Objective = Objective(threshold_seconds=0.1)

    @field_validator("time_to_first_token")
    @classmethod
    def _first_token_edge(cls, objective: Objective) -> Objective:
        return _on_edge(objective, "time_to_first_token")

    @field_validator("inter_token_latency")
    @classmethod
    def _token_gap_edge(cls, objective: Objective) -> Objective:
        return _on_edge(objective, "inter_token_latency")


class Engine(_Part):
    """What the operator knows of the engines: dialect and version when detection is wrong, and limits it does not export."""

    dialect: str = ""
    version: str = ""
    seats: Annotated[int, Field(ge=1)] | None = None
    """max_num_seqs per rank."""
    token_budget: Annotated[int, Field(ge=1)] | None = None
    """max_num_batched_tokens per step."""
    window: Annotated[int, Field(ge=1)] | None = None
    """max_model_len, tokens."""
    ask_version: bool = False
    """Ask the replicas themselves for /version, at the addresses that the source scrapes."""


class Alerts(_Part):
    """Runbook links, page or ticket per detector, thresholds per detector."""

    runbook_url: str = ""
    severity: dict[str, Literal["page", "ticket"]] = {}
    thresholds: dict[str, dict[str, Annotated[float, Field(allow_inf_nan=False)]]] = {}
    hold_seconds: dict[str, Annotated[int, Field(ge=0, le=3600)]] = {}
    """By `runbook.detector`: how long the condition of an exported rule must hold."""


class Store(_Part):
    """Where the embedded store keeps samples and for how long."""

    data: Path | None = None
    retention: Duration = "6h"

    @field_validator("retention")
    @classmethod
    def _duration(cls, retention: str) -> str:
        parse_duration_ms(retention)
        return retention

    @property
    def retention_ms(self) -> int:
        return parse_duration_ms(self.retention)


class Server(_Part):
    """Where the console listens; loopback unless told otherwise."""

    address: str = "127.0.0.1"
    port: Annotated[int, Field(ge=1, le=65535)] = 8501
    base_path: str = ""
    login: bool = False
    api_token_env: str = ""
    """Variable that holds the bearer token which other machines give to the JSON API."""
    api_token_file: Path | None = None

    @field_validator("base_path")
    @classmethod
    def _plain_path(cls, path: str) -> str:
        if not re.fullmatch(r"[A-Za-z0-9._~/-]*", path) or ".." in path:
            raise ValueError(f"{path!r} is not a plain path such as /pagewatch")
        return path.strip("/")


class Settings(_Part):
    """The whole configuration. `path` is the file it came from, None for the defaults."""

    source: tuple[SourceSettings, ...] = ()
    scope: dict[str, str] = {}
    identity: Identity = Identity()
    desired_replicas: Annotated[int, Field(ge=0)] | str | None = None
    slo: Slo = Slo()
    engine: Engine = Engine()
    alerts: Alerts = Alerts()
    store: Store = Store()
    server: Server = Server()
    _path: Path | None = PrivateAttr(default=None)
    _environment: Mapping[str, str] = PrivateAttr(default_factory=dict)

    @property
    def path(self) -> Path | None:
        return self._path

    @field_validator("scope")
    @classmethod
    def _scope_labels(cls, scope: dict[str, str]) -> dict[str, str]:
        for label in scope:
            if not LABEL_NAME.fullmatch(label) or label == "__name__":
                raise ValueError(f"{label!r} is not a label name that a scope can hold")
        return scope

    @field_validator("source")
    @classmethod
    def _names_once(cls, sources: tuple[SourceSettings, ...]) -> tuple[SourceSettings, ...]:
        names = [source.name for source in sources]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two sources are named {name!r}")
        return sources

    @classmethod
    def load(cls, path: Path | None, environment: Mapping[str, str]) -> Settings:
        """Settings of `path`, else of $PAGEWATCH_CONFIG, ./pagewatch.toml or ~/.config/pagewatch/pagewatch.toml, else defaults.

        Raises SettingsError: one line with file, line, field and reason.
        """
        found = _config_file(path, environment)
        if found is None:
            return cls()
        try:
            text = found.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise SettingsError(f"{found}: not UTF-8 text") from None
        except OSError as error:
            raise SettingsError(". ".join(file_trouble(found, error))) from None
        return cls.parse(text, found, environment)

    @classmethod
    def parse(cls, text: str, path: Path, environment: Mapping[str, str]) -> Settings:
        """Settings of a TOML text; `path` is named in errors. Raises SettingsError."""
        try:
            settings = cls.model_validate(tomllib.loads(text))
        except tomllib.TOMLDecodeError as error:
            raise SettingsError(f"{path}: {' '.join(str(error).split())}") from None
        except ValidationError as error:
            raise SettingsError(_first_mistake(error, text, path)) from None
        settings._path = path
        settings._environment = dict(environment)
        for source in settings.source:
            source._environment = dict(environment)
        return settings

    def api_token(self) -> SecretStr | None:
        """The bearer token of the JSON API; None when none is configured. Raises SettingsError."""
        return _secret(self.server.api_token_env, self.server.api_token_file, "server: api_token", self._environment)

    def named_source(self, name: str) -> SourceSettings | None:
        """The `[[source]]` of that name, None when there is none."""
        return next((source for source in self.source if source.name == name), None)


def _on_edge(objective: Objective, signal: str) -> Objective:
    from collectors.dialect import load_dialect

    dialect = load_dialect("vllm")
    edges = {edge for metric in dialect.signal(signal, dialect.default) for edge in metric.buckets}
    if objective.threshold_seconds not in edges:
        around = sorted(edges, key=lambda edge: abs(edge - objective.threshold_seconds))[:2]
        near = " or ".join(f"{edge:g}" for edge in sorted(around))
        raise ValueError(f"threshold_seconds {objective.threshold_seconds:g} is not a bucket edge; take {near}")
    return objective


def _config_file(path: Path | None, environment: Mapping[str, str]) -> Path | None:
    named = path or (Path(environment["PAGEWATCH_CONFIG"]) if environment.get("PAGEWATCH_CONFIG") else None)
    if named is not None:
        if not named.is_file():
            cause = f"{named} is a folder" if named.is_dir() else f"{named}: no such configuration file"
            raise SettingsError(f"{cause}. Check the path, or leave it out: every setting has a default")
        return named
    folders = [Path(".")]
    home = environment.get("XDG_CONFIG_HOME") or (f"{environment['HOME']}/.config" if environment.get("HOME") else "")
    if home:
        folders.append(Path(home) / "pagewatch")
    return next((folder / "pagewatch.toml" for folder in folders if (folder / "pagewatch.toml").is_file()), None)


def _first_mistake(error: ValidationError, text: str, path: Path) -> str:
    """One line for the first mistake; inputs are left out, since one of them may be a secret.

    A name that is no setting comes before one that is missing: `uri` for `url` is both, and the first is what was typed.
    """
    mistakes = error.errors(include_url=False, include_context=False, include_input=False)
    first = next((mistake for mistake in mistakes if mistake["type"] == "extra_forbidden"), mistakes[0])
    place = [part for part in first["loc"] if not (isinstance(part, str) and _UNION_TAG.fullmatch(part))]
    field = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place).lstrip(".")
    reason = first["msg"].removeprefix("Value error, ")
    if first["type"] == "extra_forbidden":
        reason = "no such setting"
    more = f" (and {len(mistakes) - 1} more)" if len(mistakes) > 1 else ""
    return f"{path}:{line_of(text, place)}: {field or 'file'}: {reason}{more}"
