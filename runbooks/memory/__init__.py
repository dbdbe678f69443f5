"""Start-up logs, out-of-memory messages and refused requests, read and accounted for."""

from runbooks.memory.admission import admission
from runbooks.memory.either import read_as
from runbooks.memory.report import ledger

__all__ = ["admission", "ledger", "read_as"]
