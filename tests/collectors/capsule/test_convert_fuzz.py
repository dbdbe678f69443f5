"""Whatever bytes come in: an incident file, or one line that says why not."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from collectors.capsule.convert import FORMATS, export_capsule, import_file
from collectors.capsule.file import open_parts
from collectors.source import SourceError
from tests.collectors.capsule.capsules import START_MS, fleet, written

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from([START_MS, START_MS / 1000]),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(["metric", "values", "timestamps", "result", "data", "resultType", "status", "start", "end", "engine", "__name__"]),
        inner,
        max_size=4,
    ),
    max_leaves=12,
)  # fmt: skip


def accepted_or_one_line(path: Path) -> None:
    out = path.with_suffix(".capsule")
    out.unlink(missing_ok=True)
    reason = ""
    try:
        import_file(path, out)
    except SourceError as error:
        reason = str(error)
    assert "\n" not in reason
    assert bool(reason) != out.exists()
    if reason:
        return
    reader = open_parts(out)[1]
    reader.verify()
    assert sum(1 for _ in reader.read()) == reader.body.series


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("exported")
    written(folder / "a.capsule", fleet(1, 4, gone_at=2))
    found = {}
    for form in FORMATS:
        export_capsule(folder / "a.capsule", form, folder / form)
        found[form] = (folder / form).read_bytes()
    found["gzip"] = gzip.compress(found["prometheus-json"], mtime=0)
    return found


@settings(deadline=None, max_examples=250, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_damaged_exports(exported: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory, data: Any) -> None:
    content = bytearray(exported[data.draw(st.sampled_from(sorted(exported)))])
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(content) - 1))
        how = data.draw(st.sampled_from(["flip", "cut", "drop", "repeat", "put"]))
        if how == "flip":
            content[at] ^= 1 << data.draw(st.integers(0, 7))
        elif how == "cut":
            content = content[: at + 1]
        elif how == "drop":
            content = content[:at] + content[at + data.draw(st.integers(1, 40)) :] or bytearray(b"x")
        elif how == "repeat":
            content = content[:at] + content[at : at + 60] + content[at:]
        else:
            content[at : at + 1] = data.draw(
                st.sampled_from([b"null", b"{}", b"[]", b'"', b"\xff", b"1e999", b"-1", b"\n", b"9" * 30])
            )
    path = tmp_path_factory.getbasetemp() / "damaged.in"
    path.write_bytes(bytes(content))
    accepted_or_one_line(path)


@settings(deadline=None, max_examples=300)
@given(JSON)
def test_any_json(tmp_path_factory: pytest.TempPathFactory, content: Any) -> None:
    path = tmp_path_factory.getbasetemp() / "any.in"
    path.write_text(json.dumps(content))
    accepted_or_one_line(path)


@settings(deadline=None, max_examples=300)
@given(st.binary(max_size=60) | st.text(max_size=60).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_any_bytes(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "bytes.in"
    path.write_bytes(content)
    accepted_or_one_line(path)
