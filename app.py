"""Launcher of the console: settings and environment in, Streamlit app with /healthz and /metrics out.

The script that Streamlit runs is `pages/main.py`, so that even a deep link to a fresh server meets the router first.

    python app.py --demo                     simulator, store and console
    pagewatch ui --source URL_OR_FILE        the console alone (calls `run_ui`)
    python app.py                            the same with PAGEWATCH_SOURCE, or the first source of the config file
"""

from __future__ import annotations

import gc
import os
import socket
import sys
import tomllib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import streamlit as st
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route
from streamlit import runtime

from collectors.settings import Settings, SettingsError
from collectors.source import SourceError
from pages.ui import assets
from pages.ui.console import Console, configure, console
from pages.ui.serving import Hardened
from runbooks.autorecord import incidents_folder

if TYPE_CHECKING:
    from runbooks.api import IncidentApi

ROOT = Path(__file__).resolve().parent
LOOPBACK = ("127.0.0.1", "localhost", "::1")
PORTS_TRIED = 200


def console_of(
    source_spec: str, settings: Settings, environment: Mapping[str, str], scope: Mapping[str, str] | None = None
) -> Console:
    """The console that these settings and this environment describe."""
    first = settings.source[0].name if settings.source else ""
    return Console(
        source_spec=source_spec or environment.get("PAGEWATCH_SOURCE", "") or first,
        settings=settings,
        scope=dict(scope or {}),
        incidents_folder=incidents_folder(settings, environment),
        shipped_folder=ROOT / "incidents",
        stories_folder=ROOT / "docs" / "incidents",
        records_file=Path(environment["PAGEWATCH_RECORDS"]) if environment.get("PAGEWATCH_RECORDS") else None,
        simulator_url=environment.get("PAGEWATCH_SIMULATOR", ""),
    )


@asynccontextmanager
async def warm_start(app: st.App) -> AsyncIterator[None]:
    """Everything a first visitor would wait for, then freeze it: every script run ends in a full garbage collection."""
    import numpy.ma  # noqa: F401
    import pandas  # noqa: F401  Streamlit imports it on its first run otherwise

    from pages.ui import diagnose_page, lab_job, latency_page, record_job, runbook_page, story  # noqa: F401

    assets.warm()
    gc.collect()
    gc.freeze()
    yield
    story.stop()
    lab_job.stop()
    record_job.stop()


async def healthz(request: Request) -> Response:
    """200 while the console answers; says nothing about the source."""
    return JSONResponse({"status": "ok"})


def own_metrics(api: IncidentApi | None) -> Callable[[Request], Response]:
    """The console's own metrics, those of the webhook among them."""
    from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

    def metrics(request: Request) -> Response:
        more = generate_latest(api.registry) if api is not None else b""
        return Response(generate_latest() + more, media_type=CONTENT_TYPE_LATEST)

    return metrics


def incident_api() -> IncidentApi | None:
    """The JSON API over this console's source (webhook in, incidents and diagnoses out); None where it cannot work, and why is printed."""
    from pages.ui import data, records
    from runbooks.api import IncidentApi
    from runbooks.incidents import Incidents
    from runbooks.records import RecordsError

    here = console()
    try:
        token = here.settings.api_token()
        return IncidentApi(
            data.held().source,
            here.settings,
            Incidents(records.records(), here.clock),
            token=token.get_secret_value() if token else None,
        )
    except (SourceError, RecordsError, SettingsError) as error:
        print(f"pagewatch: no JSON API: {error}", file=sys.stderr, flush=True)
        return None


def free_port(host: str, wanted: int) -> int:
    """`wanted`, or the next port that can be bound on this address. Raises OSError when there is none."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for port in range(wanted, min(wanted + PORTS_TRIED, 65536)):
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError as error:
                if error.errno != 98 and sys.platform == "linux":
                    raise OSError(f"cannot listen on {host}:{port}: {error.strerror}") from None
                continue
            return port
    raise OSError(f"no free port on {host} from {wanted} to {wanted + PORTS_TRIED}")


def committed_config() -> dict[str, Any]:
    """`.streamlit/config.toml` as options, wherever the command was started from."""

    def flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
        for name, value in table.items():
            if isinstance(value, dict):
                yield from flat(value, f"{prefix}{name}.")
            else:
                yield f"{prefix}{name}", value

    return dict(flat(tomllib.loads((ROOT / ".streamlit" / "config.toml").read_text(encoding="utf-8"))))


def make_app() -> st.App:
    """The ASGI app; `configure` must have been called, and `assets.place_under` where there is a base path."""
    api = incident_api()
    if api is not None:
        api.record_into(console().incidents_folder)
    routes = [Route("/healthz", healthz), Route("/metrics", own_metrics(api))]
    for route in api.routes() if api is not None else ():
        if route.path not in ("/healthz", "/metrics"):
            routes.append(Route(assets.base_path() + route.path, route.endpoint, methods=sorted(route.methods or ())))
    if assets.base_path():
        routes.append(Route("/", lambda request: RedirectResponse(assets.base_path() + "/")))
    return st.App(
        ROOT / "pages" / "main.py",
        lifespan=warm_start,
        routes=[*routes, *assets.asset_routes()],
        middleware=[Middleware(Hardened)],
    )


def run_ui(
    source_spec: str,
    *,
    host: str | None = None,
    port: int | None = None,
    config_path: Path | None = None,
    scope: Mapping[str, str] | None = None,
) -> None:
    """Serve the console until it is stopped, on the configured address and port unless they are given.

    A taken port is stepped over and the chosen one printed.

    Raises SettingsError for a configuration that cannot be used, OSError when no port is free.
    """
    settings = Settings.load(config_path, os.environ)
    configure(console_of(source_spec, settings, os.environ, scope))
    assets.place_under(settings.server.base_path)
    host, wanted = host or settings.server.address, port or settings.server.port
    chosen = free_port(host, wanted)
    if chosen != wanted:
        print(f"port {wanted} is taken, the console is on {chosen}", flush=True)
    if host not in LOOPBACK:
        print(f"the console listens on {host}: whoever reaches this address sees it", flush=True)
    shown = f"[{host}]" if ":" in host else host
    path = f"/{settings.server.base_path}" if settings.server.base_path else ""
    print(f"pagewatch is on http://{'127.0.0.1' if host in ('0.0.0.0', '::') else shown}:{chosen}{path}", flush=True)
    options = committed_config() | {
        "server.address": host,
        "server.port": chosen,
        "server.baseUrlPath": settings.server.base_path,
        "server.allowedHosts": [] if host in ("0.0.0.0", "::") else [*LOOPBACK[:2], host],
    }
    make_app().run(config=options)


def main(arguments: list[str]) -> None:
    """`python app.py [--demo ...]`: the demo is the command line's, the console alone (source: PAGEWATCH_SOURCE) is served from here."""
    if "--demo" in arguments:
        rest = [argument for argument in arguments if argument != "--demo"]
        os.execv(sys.executable, [sys.executable, str(ROOT / "cli.py"), "demo", *rest])
    if arguments:
        print("pagewatch: python app.py takes --demo; for more use the command: pagewatch ui --help", file=sys.stderr)
        raise SystemExit(2)
    if runtime.exists():
        st.error(
            "This is the launcher, not a page. Start it with: pagewatch ui --source URL_OR_FILE, or python app.py --demo"
        )
        return
    try:
        run_ui("")
    except (SettingsError, OSError) as error:
        print(f"pagewatch: {error}", file=sys.stderr)
        raise SystemExit(1) from None


if __name__ == "__main__":
    main(sys.argv[1:])
