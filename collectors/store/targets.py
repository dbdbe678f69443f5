"""Which targets to scrape: a list of addresses, or a file_sd file (JSON or YAML) that is read again when it changes."""

from __future__ import annotations

import json
import logging
import os.path
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import parse_qsl, urlencode, urlsplit

from collectors.counting import counted
from collectors.file_trouble import file_trouble
from collectors.model import Labels
from collectors.source import SourceError

FORM = 'Write a list of groups {"targets": [...], "labels": {...}}'
log = logging.getLogger(__name__)

_LABEL_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_HOST = re.compile(r"[\w.-]+|[0-9a-fA-F:.]+(%\w+)?")
MAX_FILE_BYTES = 16 * 1024 * 1024


class TargetsError(SourceError):
    """A target list or file that cannot be used; the message names the place."""


@dataclass(frozen=True)
class Target:
    """One address to scrape and the labels that every one of its series gets (`job`, `instance` and what the file says)."""

    url: str
    labels: Labels = field(hash=False)

    @property
    def instance(self) -> str:
        return self.labels["instance"]

    @property
    def job(self) -> str:
        return self.labels["job"]

    @property
    def key(self) -> str:
        """What the target is called in the store; the same after a restart."""
        return " ".join(f"{name}={value!r}" for name, value in sorted(self.labels.items()))

    @property
    def identity(self) -> tuple[str, tuple[tuple[str, str], ...]]:
        """What makes it the same target when a file is read again."""
        return self.url, tuple(sorted(self.labels.items()))


class TargetList(Protocol):
    """Where the targets stand now; asked once a second. Never raises: what cannot be read keeps the last good list."""

    def current(self) -> Sequence[Target]: ...


@dataclass(frozen=True)
class StaticTargets:
    """Targets that stay as they are."""

    targets: tuple[Target, ...]

    def current(self) -> Sequence[Target]:
        return self.targets


class FileTargets:
    """The targets of a file_sd file; a file that is missing or wrong keeps the last good list and says so once."""

    def __init__(self, path: Path, job: str) -> None:
        self._path, self._job = path, job
        self._stamp: tuple[int, int, int] | None = None
        self._targets: tuple[Target, ...] = ()
        self.problem = ""
        """Why the file is not in use as it stands; empty when it is."""

    def current(self) -> Sequence[Target]:
        try:
            stat = self._path.stat()
            stamp = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
            if stamp == self._stamp:
                return self._targets
            self._stamp = stamp
            self._targets = read_targets_file(self._path, self._job)
            self._say("")
            log.info("%s: %d targets", self._path, len(self._targets))
        except (OSError, TargetsError) as error:
            kept = f"; keeping the {counted(len(self._targets), 'target')} read before" if self._targets else ""
            self._say(
                f"{error if isinstance(error, TargetsError) else f'cannot read {self._path}: {error.strerror}'}{kept}"
            )
        return self._targets

    def _say(self, problem: str) -> None:
        if problem and problem != self.problem:
            log.warning("%s", problem)
        self.problem = problem


def open_targets(targets: Sequence[str] | str | Path, job: str = "vllm") -> TargetList:
    """A target list from addresses (`host:port`, comma separated, or full URLs) or from a path to a file_sd file.

    Raises TargetsError for an address that is not one, or a file that is missing or wrong at the start.
    """
    if isinstance(targets, str) and (targets.endswith((".json", ".yml", ".yaml")) or os.path.exists(targets)):
        targets = Path(targets)
    if isinstance(targets, Path):
        if not targets.is_file():
            what = f"{targets} is a folder" if targets.is_dir() else f"no targets file at {targets}"
            raise TargetsError(f"{what}; write host:port addresses or a file_sd JSON/YAML file")
        read_targets_file(targets, job)
        return FileTargets(targets, job)
    listed = targets.split(",") if isinstance(targets, str) else list(targets)
    found = [target_of(address.strip(), {}, job) for address in listed if address.strip()]
    if not found:
        raise TargetsError("no targets given; write at least one host:port")
    return StaticTargets(_distinct(found))


def read_targets_file(path: Path, job: str) -> tuple[Target, ...]:
    """The targets of a file_sd file: a list of `{"targets": [...], "labels": {...}}`. Raises TargetsError."""
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise TargetsError(f"{path} is larger than {MAX_FILE_BYTES} bytes")
        text = path.read_text(encoding="utf-8")
        if not text.strip():
            raise TargetsError(f"{path} is empty. {FORM}")
        groups = _parsed(path, text)
    except OSError as error:
        raise TargetsError(". ".join(file_trouble(path, error))) from None
    except UnicodeDecodeError:
        raise TargetsError(f"{path} is not UTF-8 text") from None
    if not isinstance(groups, list):
        raise TargetsError(f"{path} holds no list of groups. {FORM}")
    found: list[Target] = []
    for number, group in enumerate(groups, 1):
        place = f"{path}: group {number}"
        if not isinstance(group, dict) or not isinstance(group.get("targets"), list):
            raise TargetsError(f"{place}: expected an object with a list of targets")
        unknown = group.keys() - {"targets", "labels"}
        if unknown:
            raise TargetsError(f"{place}: unknown field {min(map(str, unknown))!r}")
        labels = group.get("labels") or {}
        if not isinstance(labels, dict) or not all(isinstance(x, str) for pair in labels.items() for x in pair):
            raise TargetsError(f"{place}: labels must be an object of texts")
        for address in group["targets"]:
            if not isinstance(address, str):
                raise TargetsError(f"{place}: target {address!r} is not a text")
            try:
                found.append(target_of(address, labels, job))
            except TargetsError as error:
                raise TargetsError(f"{place}: {error}") from None
    return _distinct(found)


def target_of(address: str, labels: Mapping[str, str], job: str) -> Target:
    """A target from an address and the labels of its group; `__scheme__`, `__metrics_path__` and `__param_*` shape the URL.

    Other labels that start with two underscores are dropped, as Prometheus does after relabelling. Raises TargetsError.
    """
    for name in labels:
        if not _LABEL_NAME.fullmatch(name):
            raise TargetsError(f"{name!r} is not a label name")
    address = labels.get("__address__", address)
    _, separator, _ = address.partition("://")
    parts = urlsplit(address if separator else f"{labels.get('__scheme__', 'http')}://{address}")
    scheme, hostname = parts.scheme, parts.hostname or ""
    try:
        port = parts.port
    except ValueError:
        raise TargetsError(f"{address!r} has no valid port") from None
    if scheme not in ("http", "https") or parts.username is not None or parts.fragment or not _HOST.fullmatch(hostname):
        raise TargetsError(f"{address!r} is not host:port or an http(s) URL without credentials")
    if not separator and (parts.path or parts.query):
        raise TargetsError(f"{address!r} is not host:port; write a full URL to give a path")
    host = f"[{hostname}]" if ":" in hostname else hostname
    authority = f"{host}:{port or (443 if scheme == 'https' else 80)}"
    path = labels.get("__metrics_path__", parts.path if parts.path not in ("", "/") else "/metrics")
    params = parse_qsl(parts.query, keep_blank_values=True) + [
        (name.removeprefix("__param_"), value) for name, value in labels.items() if name.startswith("__param_")
    ]
    query = f"?{urlencode(params)}" if params else ""
    shown = {name: value for name, value in labels.items() if not name.startswith("__") and value}
    return Target(
        f"{scheme}://{authority}/{path.lstrip('/')}{query}",
        {"instance": authority, "job": job} | dict(sorted(shown.items())),
    )


def _parsed(path: Path, text: str) -> Any:
    if path.suffix == ".json":
        try:
            return json.loads(text)
        except json.JSONDecodeError as error:
            raise TargetsError(f"{path}: line {error.lineno}: {error.msg}") from None
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise TargetsError(f"{path}: {' '.join(str(error).split())}") from None


def _distinct(targets: Sequence[Target]) -> tuple[Target, ...]:
    """Each target once; two that would write the same labels from different addresses are refused."""
    by_labels: dict[tuple[tuple[str, str], ...], Target] = {}
    for target in targets:
        before = by_labels.setdefault(target.identity[1], target)
        if before.url != target.url:
            raise TargetsError(f"{before.url} and {target.url} have the same labels {dict(target.labels)}")
    return tuple(by_labels.values())
