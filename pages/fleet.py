"""Is it serving, is it late, is it full, is it getting worse?"""

from pages.ui.fleet_page import draw
from pages.ui.frame import live_page

live_page(draw)
