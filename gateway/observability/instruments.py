"""Counters, gauges and histograms as plain numbers, by label. `gateway/observability/prometheus_registry.py` exports them.

They count in the event loop only and have no locks. prometheus_client takes 15 ms to import and is needed for `/metrics` alone.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Generic, Literal, TypeVar

Kind = Literal["counter", "gauge", "histogram"]


class Number:
    """The value of a counter or a gauge. `created` is its time in seconds since the epoch."""

    __slots__ = ("created", "value")

    def __init__(self) -> None:
        self.value = 0.0
        self.created = time.time()

    def inc(self, amount: float = 1.0) -> None:
        self.value += amount

    def dec(self) -> None:
        self.value -= 1.0

    def set(self, value: float) -> None:
        self.value = value


class Distribution:
    """The observations of a histogram: `counts` has one number for each bucket, without those of lower buckets."""

    __slots__ = ("bounds", "counts", "created", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds, self.counts = bounds, [0] * (len(bounds) + 1)
        self.sum = 0.0
        self.created = time.time()

    def observe(self, value: float) -> None:
        # A bucket includes its upper bound.
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


Child = TypeVar("Child", Number, Distribution)


class Family(Generic[Child]):
    """A metric with the values of its labels. One without labels has one value, from the start."""

    def __init__(
        self,
        kind: Kind,
        name: str,
        text: str,
        labels: Sequence[str],
        make: Callable[[], Child],
    ) -> None:
        self.kind, self.name, self.text, self.label_names = kind, name, text, tuple(labels)
        self.children: dict[tuple[str, ...], Child] = {} if labels else {(): make()}
        self._make: Callable[[], Child] = make

    def labels(self, *values: str) -> Child:
        """Return the value with these labels, in the order of `label_names`. The first call creates it."""
        child = self.children.get(values)
        if child is None:
            child = self.children[values] = self._make()
        return child
