"""The browser half: plotly.js out of the installed package, our own modules, both under addresses that change with their content."""

from __future__ import annotations

import gzip
import hashlib
import threading
from importlib import metadata, util
from pathlib import Path
from typing import Any

import streamlit as st
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route

FOLDER = Path(__file__).parent / "browser"
KEEP = {"Cache-Control": "public, max-age=31536000, immutable", "X-Content-Type-Options": "nosniff"}

_base = ""
_packed: dict[str, bytes] = {}
_packing = threading.Lock()


def place_under(base_path: str) -> None:
    """Serve everything under this path, as Streamlit does its pages. Call it before the first component is made."""
    global _base
    _base = f"/{base_path.strip('/')}" if base_path.strip("/") else ""


def base_path() -> str:
    """'' or '/path' without a slash at its end."""
    return _base


def _digest() -> str:
    whole = hashlib.sha256()
    for file in sorted(FOLDER.glob("*.js")):
        whole.update(file.name.encode() + file.read_bytes())
    return whole.hexdigest()[:12]


DIGEST = _digest()
"""Of all modules together: they import each other by relative address."""


def module_url(name: str) -> str:
    return f"{_base}/assets/{DIGEST}/{name}.js"


def plotly_url() -> str:
    return f"{_base}/assets/plotly-{metadata.version('plotly')}.min.js"


def plotly_js() -> Path:
    """plotly.js as it comes with the installed plotly package, found without importing it."""
    spec = util.find_spec("plotly")
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError("plotly is not installed; pip install plotly brings the plotly.js that charts need")
    return Path(spec.submodule_search_locations[0]) / "package_data" / "plotly.min.js"


def _compressed(path: Path) -> bytes:
    """4.8 MB become 1.5 MB once per process, not once per visitor."""
    with _packing:
        key = str(path)
        if key not in _packed:
            _packed[key] = gzip.compress(path.read_bytes(), compresslevel=6, mtime=0)
        return _packed[key]


def warm() -> None:
    """Compress plotly.js now, so that the first visitor does not wait for it."""
    _compressed(plotly_js())


def asset_routes() -> list[Route]:
    """Routes for plotly.js and for the modules of `browser/`."""

    def plotly(request: Request) -> Response:
        if "gzip" in request.headers.get("accept-encoding", ""):
            headers = {**KEEP, "Content-Encoding": "gzip", "Vary": "Accept-Encoding"}
            return Response(_compressed(plotly_js()), media_type="text/javascript", headers=headers)
        return FileResponse(plotly_js(), media_type="text/javascript", headers=KEEP)

    def module(request: Request) -> Response:
        path = FOLDER / f"{request.path_params['name']}.js"
        if path.parent != FOLDER or not path.is_file():
            return Response(status_code=404)
        return FileResponse(path, media_type="text/javascript", headers=KEEP)

    return [Route(plotly_url(), plotly), Route(f"{_base}/assets/{{digest}}/{{name}}.js", module)]


def component(name: str) -> Any:
    """A Streamlit component whose code is `browser/<name>.js`.

    Inline code travels again with every refresh of every instance, so what is inlined only imports the module.
    """
    stub = (
        f'const loaded = import(new URL("{module_url(name)}", location.origin).href)\n'
        "export default async (component) => (await loaded).default(component)\n"
    )
    return st.components.v2.component(f"pagewatch_{name}", js=stub, isolate_styles=False)
