"""Services without any work: their real metrics, moved by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry

from docs.generate import METRICS, exposed_name

PREFIXES = {"producer": "hiddenstream_producer_", "gpu_worker": "hiddenstream_worker_", "sink": "hiddenstream_sink_"}


class MadeService:
    """The metrics of one service, as it would serve them.

    Attributes:
        job, instance: the labels that Prometheus would give its series.
        registry: what ``/metrics`` would show.
    """

    def __init__(self, job: str, instance: str) -> None:
        self.job, self.instance, self.registry = job, instance, CollectorRegistry()
        declared = METRICS[job].in_registry(self.registry)
        metrics = [getattr(declared, field.name) for field in dataclasses.fields(declared)]
        self._metrics = {exposed_name(metric): metric for metric in metrics}
        if info := self._metrics.get(f"{PREFIXES[job]}build_info"):
            info.clear()  # what runs the test is no part of the made run

    def _child(self, name: str, labels: dict[str, str]) -> Any:
        metric = self._metrics[PREFIXES[self.job] + name]
        return metric.labels(**labels) if labels else metric

    def show(self, name: str, value: float, /, **labels: str) -> None:
        """Set a gauge."""
        self._child(name, labels).set(value)

    def add(self, name: str, amount: float, /, **labels: str) -> None:
        """Count."""
        self._child(name, labels).inc(amount)

    def observe(self, name: str, seconds: float, /, **labels: str) -> None:
        """Add to a histogram."""
        self._child(name, labels).observe(seconds)

    def show_one(self, name: str, label: str, words: tuple[str, ...], chosen: str) -> None:
        """Set the series of one word to 1 and those of the others to 0."""
        for word in words:
            self.show(name, float(word == chosen), **{label: word})

    def samples(self) -> Iterator[tuple[str, dict[str, str], float]]:
        """Yield name, labels and value of every series, as a scrape would see them."""
        who = {"job": self.job, "instance": self.instance}
        for family in self.registry.collect():
            for sample in family.samples:
                if not sample.name.endswith("_created"):
                    yield sample.name, sample.labels | who, sample.value
        yield "up", who, 1.0
