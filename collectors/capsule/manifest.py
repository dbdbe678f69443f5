"""The manifest of an incident file: what was recorded, from where, and what is known about it. Documented in docs/capsule.md.

Nothing in it feeds a judgement except metric types: `ground_truth`, `server_flags` and `original` are for display.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from collectors.model import MetricMeta
from collectors.series_lines import LATEST_MS
from collectors.source import SourceBroken

SCHEMA = 2
"""Version of the file that this program writes; older ones open, newer ones are refused by name."""
BODY_FILE = "series.jsonl.gz"
MANIFEST_FILE = "manifest.json"


Instant = Annotated[int, Field(ge=0, le=LATEST_MS)]
"""Epoch milliseconds, up to a time that calendars have."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="allow", frozen=True)


class Extent(_Part):
    """First and last instant, epoch milliseconds."""

    """First and last instant, epoch milliseconds."""

    start_ms: Instant = 0
    end_ms: Instant = 0


class Origin(_Part):
    """What answered when this was recorded; the address is stripped of user, password and query."""

    name: str = ""
    kind: str = ""
    backend: str = ""
    version: str = ""
    url: str = ""


class EngineFacts(_Part):
    """Serving engine as far as the metrics or the recording tell."""

    name: str = ""
    version: str = ""
    dialect: str = ""


class Meta(_Part):
    """TYPE, HELP and UNIT of one metric family."""

    type: str = "unknown"
    help: str = ""
    unit: str = ""


class Replica(_Part):
    """One scraped target with the ranks inside it."""

    instance: str
    job: str = ""
    engines: tuple[str, ...] = ()
    scrape_interval_ms: Annotated[int, Field(ge=0)] = 0


class Mark(_Part):
    """An instant worth jumping to: a restart, an anomaly, an operator's note."""

    at_ms: Instant
    kind: str
    text: str = ""
    instance: str = ""
    engine: str = ""


class Redaction(_Part):
    """Label of which some values were replaced before writing, and how many; never the pattern, which may name what was hidden."""

    label: str
    values: int = 0


class Member(_Part):
    """One gzip member of the body: where it lies, what unpacking it gives, which metrics it holds."""

    offset: Annotated[int, Field(ge=0)]
    bytes: Annotated[int, Field(gt=0)]
    raw_bytes: Annotated[int, Field(ge=0)]
    series: Annotated[int, Field(ge=0)]
    samples: Annotated[int, Field(ge=0)]
    metrics: tuple[str, ...] = ()


class TimeTable(_Part):
    """The last gzip member of the body: the timestamp vectors that its series share."""

    offset: Annotated[int, Field(ge=0)]
    bytes: Annotated[int, Field(gt=0)]
    raw_bytes: Annotated[int, Field(ge=0)]
    vectors: Annotated[int, Field(ge=0)]


class Body(_Part):
    """Size and hash of the body as it lies in the file (compressed)."""

    file: Literal["series.jsonl.gz"] = "series.jsonl.gz"
    sha256: Annotated[str, Field(pattern="^([0-9a-f]{64})?$")] = ""
    bytes: Annotated[int, Field(ge=0)] = 0
    raw_bytes: Annotated[int, Field(ge=0)] = 0
    series: Annotated[int, Field(ge=0)] = 0
    samples: Annotated[int, Field(ge=0)] = 0
    members: tuple[Member, ...] = ()
    times: TimeTable | None = None


class Manifest(_Part):
    """Everything about a recorded incident but its samples."""

    schema_: Annotated[int, Field(alias="schema", ge=1)] = SCHEMA
    title: str = ""
    written_by: str = ""
    window: Extent = Extent()
    source: Origin = Origin()
    engine: EngineFacts = EngineFacts()
    staleness: Literal["kept", "reconstructed", "absent"] = "kept"
    metrics: dict[str, Meta] = {}
    replicas: tuple[Replica, ...] = ()
    cache_config: dict[str, dict[str, str]] = {}
    config: dict[str, Any] = {}
    rules: tuple[dict[str, Any], ...] = ()
    rule_states: tuple[dict[str, Any], ...] = ()
    detectors: dict[str, str] = {}
    detector_states: tuple[dict[str, Any], ...] = ()
    burn_rates: tuple[dict[str, Any], ...] = ()
    diagnosis: dict[str, Any] = {}
    walks: tuple[dict[str, Any], ...] = ()
    marks: tuple[Mark, ...] = ()
    redactions: tuple[Redaction, ...] = ()
    notes: tuple[str, ...] = ()
    ground_truth: Any = None
    server_flags: Any = None
    original: dict[str, Any] = {}
    body: Body = Body()

    model_config = ConfigDict(extra="allow", frozen=True, validate_by_name=True, validate_by_alias=True)

    def metadata(self) -> Mapping[str, MetricMeta]:
        """TYPE and HELP by family name, as a source gives them."""
        return {name: MetricMeta(meta.type, meta.help, meta.unit) for name, meta in self.metrics.items()}

    def to_json(self) -> bytes:
        """Indented JSON with sorted keys; fields at their defaults are left out (but never the schema and the body)."""
        data = self.model_dump(mode="json", by_alias=True, exclude_defaults=True)
        data |= {"schema": self.schema_, "body": self.body.model_dump(mode="json")}
        return orjson.dumps(data, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS) + b"\n"


def read_manifest(text: bytes, where: str) -> Manifest:
    """Manifest of its JSON. Raises SourceBroken: not JSON, a newer schema (by number), a wrong field (by name)."""
    try:
        data = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise SourceBroken(f"{where}: {MANIFEST_FILE} is not JSON: {error}") from None
    if not isinstance(data, dict) or not isinstance(data.get("schema"), int):
        raise SourceBroken(f"{where}: {MANIFEST_FILE} names no schema; this is not an incident file")
    if data["schema"] > SCHEMA:
        raise SourceBroken(
            f"{where} has manifest schema {data['schema']}, this program reads up to {SCHEMA}", "Update pagewatch"
        )
    try:
        return Manifest.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(str(part) for part in first["loc"])
        raise SourceBroken(f"{where}: {MANIFEST_FILE}: {field}: {first['msg']}") from None
