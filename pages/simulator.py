"""simulator"""

from pages.ui.frame import live_page

live_page(lambda here: None)
