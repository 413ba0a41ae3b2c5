"""Exports instruments by prometheus_client, with the same samples as its own counters, gauges and histograms."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Metric, ProcessCollector, generate_latest
from prometheus_client.registry import Collector
from prometheus_client.utils import INF, floatToGoString

from gateway.observability.instruments import Distribution, Family, Number

Families = Sequence[Family[Number] | Family[Distribution]]


class Registry(CollectorRegistry):
    """The registry of a gateway: its instruments, and the metrics of its process."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self, families: Families) -> None:
        super().__init__()
        ProcessCollector(registry=self)
        self.register(_Instruments(families))

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self)


class _Instruments(Collector):
    def __init__(self, families: Families) -> None:
        self._families = families
        self._with_created = _exports_created()

    def collect(self) -> Iterator[Metric]:
        for family in self._families:
            metric = Metric(family.name, family.text, family.kind)
            for values, child in family.children.items():
                labels = dict(zip(family.label_names, values, strict=True))
                if isinstance(child, Distribution):
                    _add_distribution(metric, labels, child)
                    self._add_created(metric, labels, child)
                elif family.kind == "counter":
                    metric.add_sample(f"{family.name}_total", labels, child.value)
                    self._add_created(metric, labels, child)
                else:
                    metric.add_sample(family.name, labels, child.value)
            yield metric

    def _add_created(self, metric: Metric, labels: dict[str, str], child: Number | Distribution) -> None:
        if self._with_created:
            metric.add_sample(f"{metric.name}_created", labels, child.created)


_text_of: Callable[[float], str] = floatToGoString


def _add_distribution(metric: Metric, labels: dict[str, str], child: Distribution) -> None:
    totals = list(accumulate(child.counts))
    for bound, total in zip((*child.bounds, INF), totals, strict=True):
        metric.add_sample(f"{metric.name}_bucket", {**labels, "le": _text_of(bound)}, float(total))
    metric.add_sample(f"{metric.name}_count", labels, float(totals[-1]))
    metric.add_sample(f"{metric.name}_sum", labels, child.sum)


def _exports_created() -> bool:
    """Whether prometheus_client exports times of creation: its variable PROMETHEUS_DISABLE_CREATED_SERIES disables them."""
    (family,) = Counter("any", "", registry=None).collect()
    return any(sample.name.endswith("_created") for sample in family.samples)
