"""The entry points keep the arrows too: import-linter sees packages, and these are modules."""

import ast

import pytest

from tests.shared_data import ROOT

FORBIDDEN = {
    "app.py": {"sim_backend", "cli"},
    "cli_input.py": {"streamlit", "plotly", "pandas", "prometheus_api_client", "pages", "runbooks", "sim_backend"},
    "cli.py": {"streamlit", "plotly", "pandas", "prometheus_api_client", "pages"},
    "demo.py": {"streamlit", "plotly", "pandas", "sim_backend", "collectors", "runbooks", "pages", "app", "cli"},
}


def imported(file: str) -> set[str]:
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}
    return {name.split(".")[0] for name in names}


@pytest.mark.parametrize("file", FORBIDDEN)
def test_an_entry_point_imports_only_what_it_may(file: str) -> None:
    assert not imported(file) & FORBIDDEN[file]


@pytest.mark.parametrize("file", ["cli.py", "cli_input.py"])
def test_heavy_modules_wait_for_their_verb(file: str) -> None:
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    at_start = {node.module or "" for node in tree.body if isinstance(node, ast.ImportFrom)} | {
        alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names
    }
    assert not {name.split(".")[0] for name in at_start} & {
        "collectors",
        "runbooks",
        "sim_backend",
        "app",
        "numpy",
        "pydantic",
    }
