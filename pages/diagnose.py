"""What is wrong, and how do we know?"""

from pages.ui.diagnose_page import draw
from pages.ui.frame import live_page

live_page(draw)
