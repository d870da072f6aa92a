"""Tests numbers and sampled text as people see them."""

import pytest

from vinejax.records import formats


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.53, "0.530"), (41.0, "41"), (14986.4, "14,986"), (2.07e6, "2.07M"), (0.0, "0")]
    + [(1e6, "1M"), (999_999, "999,999"), (1e9, "1.00e+09"), (0.001, "0.00100"), (-2.5, "−2.50")]
    + [(9.994e8, "999M"), (9.996e8, "1.00e+09")]
    + [(-0.00042, "−4.2e-04"), (99.97, "100"), (None, "–")],
)
def test_short_numbers(value: float | None, shown: str):
    assert formats.three_digits(value) == shown


def test_fixed_numbers_carry_their_sign():
    found = [formats.two_decimals(v, signed=True) for v in (0.226, -0.5, -0.001, 0.0, None)]
    assert found == ["+0.23", "−0.50", "0.00", "0.00", "–"]
    found = [formats.three_decimals(v) for v in (0.1234, 999.5, 1000.0, -14986.4, None)]
    assert found == ["0.123", "999.500", "1,000", "−14,986", "–"]


def test_labels_of_an_axis_are_short_and_differ():
    labels = [formats.tick_label(v) for v in (0.5, 30.0, 100, -0.0002, None)]
    assert labels == ["0.5", "30", "100", "−2e-04", "–"]
    assert formats.tick_labels([0.0, 0.5, 1.0]) == ["0", "0.5", "1"]
    assert formats.tick_labels([-1000.1, -1000.2]) == ["−1000.1", "−1000.2"]


def test_a_long_text_is_cut_and_says_by_how_much():
    assert formats.clip("abcdef", 4) == formats.Clipped("abcd", 2)
    assert formats.clip("abc", 4) == formats.Clipped("abc", 0)
    assert formats.clip(None, 4) == formats.Clipped("", 0)
    blank = formats.clip("\n" * 100 + "end", 60)  # each of its line ends is a line of the page
    assert blank == formats.Clipped("\n" * formats.MAX_BLANK, 103 - formats.MAX_BLANK)


def test_empty_lines_around_a_step_are_left_out():
    assert formats.trimmed(formats.Clipped("\n a\n b\n")) == formats.Clipped(" a\n b")
    assert formats.trimmed(formats.Clipped("\na\n", 7)) == formats.Clipped("a\n", 7)
    assert formats.trimmed(formats.Clipped("\n \n")) == formats.Clipped("\n \n")


def test_what_cannot_be_seen_becomes_visible():
    assert (
        formats.printable("a\0b\tc\u202ed\ud800 é\u00a0世\n")
        == "a␀b\tc⟨U+202E⟩d⟨U+D800⟩ é\u00a0世\n"
    )
