"""Diagnoses a cluster: `Observed` in, findings with causes and remedies out. Pure.

A request without a response is a finding, too: while the cluster fails, responses may be few.
"""

from __future__ import annotations

from mqctl.dead_letter_findings import check_dead_letters
from mqctl.delay_findings import check_delays
from mqctl.disk_findings import check_bounds, check_disks
from mqctl.findings import DENIED_REMEDY, Finding, Observed
from mqctl.partition_findings import check_moves, check_partitions
from mqctl.quorum_findings import check_brokers, check_controller


def diagnose(observed: Observed) -> list[Finding]:
    """All findings: controller and brokers, partitions and moves, disks and bounds."""
    findings = [
        *check_controller(observed),
        *check_brokers(observed),
        *check_partitions(observed),
        *check_moves(observed),
        *check_delays(observed),
        *check_dead_letters(observed),
        *check_disks(observed),
        *check_bounds(observed),
    ]
    denied = [number for number, each in enumerate(findings) if each.remedy == DENIED_REMEDY]
    for number in denied[1:]:
        findings[number] = findings[number]._replace(remedy="")
    return findings
