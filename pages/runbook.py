"""Next step?"""

from pages.ui.frame import live_page
from pages.ui.runbook_page import draw

live_page(draw)
