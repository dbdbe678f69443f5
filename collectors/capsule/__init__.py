"""Incident files: one recorded incident in one file. Reading, writing, recording, other programs' formats."""

from collectors.capsule.file import SUFFIX, write_capsule
from collectors.capsule.opened import Capsule, CapsuleSource, read_capsule

__all__ = ["SUFFIX", "Capsule", "CapsuleSource", "read_capsule", "write_capsule"]
