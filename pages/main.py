"""The router: navigation, and the time and source that the address names. Runs before every page."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:  # Streamlit puts only this folder on the path
    sys.path.insert(0, str(ROOT))

import streamlit as st  # noqa: E402

from pages.ui import view  # noqa: E402
from pages.ui.assets import FOLDER  # noqa: E402
from pages.ui.console import console  # noqa: E402
from pages.ui.reading_bar import shown_while_reading  # noqa: E402

st.set_page_config(page_title="pagewatch", page_icon=FOLDER / "mark.svg", layout="wide", initial_sidebar_state=196)
st.logo(FOLDER / "wordmark.svg", icon_image=FOLDER / "mark.svg", size="small")
st.html(FOLDER / "console.css")

if console().settings.server.login and not st.user.get("is_logged_in"):
    st.title("pagewatch")
    st.button("Log in", on_click=st.login, type="primary")
    st.stop()

past = [st.Page("incidents.py", title="Incidents", icon=":material/history:", url_path="incidents")]
simulated = bool(console().simulator_url)
page = st.navigation(
    {
        "Watch": [
            st.Page("fleet.py", title="Fleet", icon=":material/grid_view:", default=True),
            st.Page("latency.py", title="Latency", icon=":material/timer:", url_path="latency"),
            st.Page("replica.py", title="Replica", icon=":material/dns:", url_path="replica", visibility="hidden"),
        ],
        "Explain": [
            st.Page("diagnose.py", title="Diagnose", icon=":material/troubleshoot:", url_path="diagnose"),
            st.Page("runbook.py", title="Runbooks", icon=":material/checklist:", url_path="runbook"),
            st.Page("memory.py", title="Memory", icon=":material/memory:", url_path="memory"),
        ],
        "Replay": [
            *past,
            st.Page(
                "simulator.py",
                title="Simulator",
                icon=":material/science:",
                url_path="simulator",
                visibility="visible" if simulated else "hidden",
            ),
        ],
    },
    expanded=True,
)
with shown_while_reading():
    view.settle(page.url_path)
    page.run()
