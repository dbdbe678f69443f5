"""Every kind of situation."""

from __future__ import annotations

from tests.runbooks.fresh.calm import CALM
from tests.runbooks.fresh.mixed import MIXED
from tests.runbooks.fresh.troubles import TROUBLES

KINDS = tuple(dict.fromkeys((*CALM, *TROUBLES, *MIXED)))
