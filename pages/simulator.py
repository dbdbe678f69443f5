"""Break the simulated fleet and watch the console find it."""

from pages.ui.frame import live_page
from pages.ui.simulator_page import draw

live_page(draw)
