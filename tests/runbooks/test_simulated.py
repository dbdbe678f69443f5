"""The bounded form of benchmarks/alert_coverage.py: some scenarios are simulated, diagnosed, walked and mended."""

import pytest

from collectors.settings import Settings
from runbooks.rules import rules
from runbooks.verdicts import RUNBOOK_OF_CAUSE
from tests.runbooks.simulated_proof import prove

RULES = rules(Settings())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scenario", "leaf"),
    [
        ("seat_limited", "seats"),
        ("kv_limited", "kv_answers"),
        ("unadmittable_head", "never"),
        ("engine_stalled", "wedged"),
    ],
)
def test_a_simulated_incident_is_named_walked_and_mended(scenario: str, leaf: str) -> None:
    proof = prove(scenario, 7, RULES)
    assert proof.word == "fired", proof
    assert (proof.walked_to, proof.leaf, proof.steps_led_to) == (proof.expected, leaf, None)
    assert (proof.verify_before, proof.verify_after) == ("no", "yes")
    assert RUNBOOK_OF_CAUSE[proof.expected] in proof.rules
