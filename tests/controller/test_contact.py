"""A heartbeat counts as contact when the metadata that its response names is applied."""

from __future__ import annotations

import math

from mqd.controller.contact import Contact


def test_there_is_no_contact_before_a_response() -> None:
    assert Contact().at(7) == -math.inf


def test_a_response_counts_when_its_metadata_is_applied() -> None:
    contact = Contact()
    contact.answered(1.0, 5)
    assert contact.at(4) == -math.inf
    assert contact.at(5) == contact.at(9) == 1.0


def test_a_response_without_a_metadata_index_counts_at_once() -> None:
    contact = Contact()
    contact.answered(1.0, -1)  # from a controller of an earlier release
    assert contact.at(0) == 1.0


def test_a_node_that_lags_slightly_is_in_contact() -> None:
    contact = Contact()
    for second in range(100):
        contact.answered(float(second), 10 * second)
        assert second == 0 or contact.at(10 * second - 5) == second - 1
    assert len(contact._unapplied) <= 2


def test_the_time_of_contact_never_decreases() -> None:
    contact = Contact()
    contact.answered(3.0, 5)
    contact.answered(2.0, 6)  # sent earlier, received later
    assert (contact.at(5), contact.at(6)) == (3.0, 3.0)
