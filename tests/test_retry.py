"""When to try again and how hard, by fake clocks."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest

from s3dlio import errors
from s3dlio.storage.cloud.retry import Attempts, Failure, Pace, Policy, Verdict


@dataclass
class Operation:
    action: str = "read"
    uri: str = "s3://bkt/k"


def attempts(**policy: float) -> Attempts:
    attempts = Attempts(Policy(**policy), Operation())  # type: ignore[arg-type]
    attempts.begin(0.0)
    return attempts


@pytest.fixture(autouse=True)
def _fixed_chance() -> None:
    random.seed(1)


def test_pauses_grow_exponentially_with_full_jitter_up_to_a_bound() -> None:
    for num_failed in range(1, 12):
        bound = min(10.0, 0.1 * 2 ** (num_failed - 1))
        pauses = []
        for _ in range(300):
            history = attempts(max_attempts=100, operation_timeout=1e9)
            history.num_failed = num_failed - 1
            pauses.append(history.pause_after(Failure(Verdict.RETRY, "broken"), 0.0))
        assert 0.0 <= min(pauses) < 0.1 * bound
        assert 0.9 * bound < max(pauses) <= bound


def test_what_is_final_is_not_tried_again() -> None:
    with pytest.raises(errors.AccessDeniedError, match=r"^cannot read s3://bkt/k: 403 No \(check the key\)$"):
        attempts().pause_after(Failure(Verdict.FINAL, "403 No", kind=errors.AccessDeniedError, remedy="check the key"), 0.0)


def test_failures_use_up_the_attempts() -> None:
    history = attempts(max_attempts=3)
    history.pause_after(Failure(Verdict.RETRY, "broken"), 0.0)
    history.pause_after(Failure(Verdict.RETRY, "broken"), 1.0)
    with pytest.raises(errors.S3dlioError, match=r"s3://bkt/k: broken; 3 attempts in 2\.0 s"):
        history.pause_after(Failure(Verdict.RETRY, "broken"), 2.0)


def test_throttling_counts_against_time_and_not_against_attempts() -> None:
    history = attempts(max_attempts=2, operation_timeout=100.0)
    now = 0.0
    while now < 85.0:
        now += history.pause_after(Failure(Verdict.THROTTLED, "slow down"), now)
    assert history.num_failed > 10
    with pytest.raises(errors.ThrottledError, match="slow down"):
        history.pause_after(Failure(Verdict.THROTTLED, "slow down"), 100.1)


def test_no_retry_begins_after_the_bound_of_the_operation() -> None:
    history = attempts(max_attempts=100, operation_timeout=30.0)
    assert history.pause_after(Failure(Verdict.RETRY, "broken"), 29.0) < 1.0
    with pytest.raises(errors.S3dlioError):
        history.pause_after(Failure(Verdict.RETRY, "broken", retry_after=5.0), 26.0)


def test_an_unreachable_server_is_given_up_after_the_connect_timeout() -> None:
    history = attempts(max_attempts=100, connect_timeout=10.0)
    history.pause_after(Failure(Verdict.UNREACHED, "refused"), 9.0)
    with pytest.raises(errors.S3dlioError, match="refused"):
        history.pause_after(Failure(Verdict.UNREACHED, "refused"), 10.1)


def test_retry_after_is_the_least_pause() -> None:
    assert attempts().pause_after(Failure(Verdict.THROTTLED, "slow down", retry_after=7.0), 0.0) == 7.0


def test_corrections_are_free_and_bounded() -> None:
    history = attempts(max_attempts=2)
    for _ in range(5):
        assert history.pause_after(Failure(Verdict.CORRECTED, "stale"), 0.0) == 0.0
    history.pause_after(Failure(Verdict.CORRECTED, "stale"), 0.0)
    with pytest.raises(errors.S3dlioError):
        history.pause_after(Failure(Verdict.CORRECTED, "stale"), 0.0)


def entered(pace: Pace) -> int:
    return len(places_of(pace))


def places_of(pace: Pace) -> list[list[int]]:
    """All places that there are."""
    places: list[list[int]] = [[]]
    while pace.enter(places[-1]):
        places.append([])
    return places[:-1]


def test_the_pace_lets_in_as_many_as_the_limit() -> None:
    pace = Pace(4)
    places = places_of(pace)
    assert len(places) == 4
    for _ in range(2):
        pace.leave(places[0])  # a second time does nothing
    assert entered(pace) == 1


def test_a_place_of_before_a_fork_is_gone() -> None:
    pace = Pace(4)
    places = places_of(pace)
    pace.renew()
    for place in places:
        pace.leave(place)
    assert pace.num_running == 0
    assert entered(pace) == 4


def test_throttling_halves_the_pace_once_a_second_and_never_stops_it() -> None:
    pace = Pace(64)
    places = places_of(pace)
    assert len(places) == 64
    for _ in range(10):
        pace.throttled(100.0)
    assert pace.limit == 32
    pace.throttled(101.0)
    assert pace.limit == 16
    for second in range(102, 120):
        pace.throttled(float(second))
    assert pace.limit == 1
    for place in places:
        pace.leave(place)
    assert entered(pace) == 1


def test_the_pace_is_halved_from_what_runs_and_not_from_what_might() -> None:
    pace = Pace(256)
    for _ in range(8):
        pace.enter([])
    pace.throttled(100.0)
    assert pace.limit == 4


def test_the_pace_recovers_by_one_per_round_of_good_answers() -> None:
    pace = Pace(8)
    entered(pace)
    pace.throttled(100.0)
    assert pace.limit == 4
    for _ in range(5):
        pace.succeeded()
    assert 5.0 <= pace.limit < 5.2
    for _ in range(100):
        pace.succeeded()
    assert pace.limit == 8


class Driver:
    """Many attempts of one thread, as far as the pace knows them."""

    num_running = 2
    is_parked = False


def test_the_places_of_a_driver_whose_consumer_is_at_work_may_be_taken_by_others() -> None:
    pace, driver = Pace(2), Driver()
    pace.crowds.append(driver)
    assert entered(pace) == 2
    driver.is_parked = True
    places = places_of(pace)
    assert len(places) == 2
    driver.is_parked = False
    for place in places:
        pace.leave(place)
    assert not pace.enter([])
