"""Why does it not start, fit, get admitted?"""

from pages.ui.memory_page import draw

draw()
