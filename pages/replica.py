"""How is this one replica?"""

from pages.ui.frame import live_page
from pages.ui.replica_page import draw

live_page(draw)
