"""Only the librdkafka call that is known not to return is excused; a client that hangs in another
call fails the trial.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import pytest

from chaos.copy_group import Worker
from chaos.copy_worker import HUNG_CODE, SEND_OFFSETS
from chaos.workload import TrialFailed


@pytest.fixture
def ended() -> Iterator[Callable[..., Worker]]:
    """A worker that has printed some lines and ended."""
    workers: list[Worker] = []

    def end(code: int, *said: str) -> Worker:
        words = "".join(f"print({line!r});" for line in said)
        workers.append(
            Worker([sys.executable, "-c", f"{words}raise SystemExit({code})"], "of-a-test")
        )
        workers[-1]._process.wait(30)
        return workers[-1]

    yield end
    for worker in workers:
        worker.kill()
        worker.close()


def test_a_worker_whose_client_hangs_in_the_known_call_must_be_restarted(
    ended: Callable[..., Worker],
) -> None:
    worker = ended(HUNG_CODE, "committed 3", f"hung {SEND_OFFSETS}")
    assert worker.hung
    worker.check_alive()
    worker.wait_ended()
    assert worker.counts == {"records": 3, "committed": 1, "hung": 1}


def test_a_worker_whose_client_hangs_in_another_call_fails_the_trial(
    ended: Callable[..., Worker],
) -> None:
    worker = ended(HUNG_CODE, "hung commit_transaction")
    assert not worker.hung
    for check in (worker.check_alive, worker.wait_ended):
        with pytest.raises(TrialFailed, match="hung in commit_transaction"):
            check()


def test_a_worker_that_breaks_fails_the_trial(ended: Callable[..., Worker]) -> None:
    with pytest.raises(TrialFailed, match="exit code 1"):
        ended(1).check_alive()
