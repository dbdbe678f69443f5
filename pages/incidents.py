"""What happened, and what could we have known?"""

from pages.ui.incidents_page import page

page()
