"""Warning signs of training: counted anew after each good record, told once."""

from __future__ import annotations

from itertools import groupby

from hypothesis import given
from hypothesis import strategies as st

from train.loop.warning_signs import WarningSigns


@given(st.lists(st.lists(st.booleans(), max_size=6), max_size=6), st.integers(0, 4))
def test_failure_is_the_first_run_of_overflows_that_is_too_long(chunks: list[list[bool]], most: int) -> None:
    signs, done, found = WarningSigns(), 0, None
    for chunk in chunks:
        place = signs.first_failure([1.0 if good else float("nan") for good in chunk], most)
        if place is not None:
            found = done + place
            break
        done += len(chunk)
    goods, expected, at = [good for chunk in chunks for good in chunk], None, 0
    for good, run in groupby(goods):
        length = len(list(run))
        if not good and length > most:
            expected = at + most
            break
        at += length
    assert found == expected


def test_collapse_is_told_once_and_again_after_it_has_ended() -> None:
    signs = WarningSigns()
    told = [bool(signs.collapse(step, value)) for step, value in enumerate([0.5, 0.995, 0.999, 0.5, 1.0])]
    assert told == [False, True, False, False, True]
    assert signs.collapsed_at == 4


def test_inert_kernel_is_told_after_ten_records_in_a_row() -> None:
    signs = WarningSigns()
    active = [0.001] * 9 + [0.5] + [0.001] * 12
    assert [bool(signs.inert_kernel(0, {"kernel_active": each})) for each in active].index(True) == 19
    assert not any(signs.inert_kernel(0, {}) for _ in range(20))
