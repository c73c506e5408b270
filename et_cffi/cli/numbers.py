"""Numbers on a command line, for argparse's `type`."""

from __future__ import annotations

import argparse


def positive(text: str) -> int:
    """A number from 1 on."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"1 or more, not {text}")
    return value


def natural(text: str) -> int:
    """A number from 0 on."""
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"0 or more, not {text}")
    return value


def positive_list(text: str) -> list[int]:
    """Numbers from 1 on, with commas between them."""
    return [positive(item) for item in text.split(",")]


def tolerance(text: str) -> float:
    """A tolerance: 0 or more."""
    value = float(text)
    if not value >= 0:
        raise argparse.ArgumentTypeError(f"a tolerance is 0 or more, not {text}")
    return value
