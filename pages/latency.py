"""Where does the time go, and for whom?"""

from pages.ui.frame import live_page
from pages.ui.latency_page import draw

live_page(draw)
