"""What a server counts, for Prometheus."""

from collections.abc import Callable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_LATENCIES = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
_SWAPS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Metrics:
    """The figures of one server, each with its name and meaning."""

    def __init__(self) -> None:
        self.registry = own = CollectorRegistry()
        self.requests = Counter(
            "sparsegroup_requests", "Requests by path and status.", ["path", "status"], registry=own
        )
        self.rows = Counter("sparsegroup_rows", "Rows scored.", registry=own)
        self.latency = Histogram(
            "sparsegroup_request_seconds",
            "Seconds a request takes, by path.",
            ["path"],
            buckets=_LATENCIES,
            registry=own,
        )
        self.in_flight = Gauge("sparsegroup_requests_in_flight", "Requests being answered.", registry=own)
        self.rejected = Counter("sparsegroup_requests_rejected", "Requests refused because of load.", registry=own)
        self.swaps = Counter("sparsegroup_swaps", "Models taken into service.", registry=own)
        self.swap_seconds = Histogram(
            "sparsegroup_swap_seconds", "Seconds to fetch, build, check and swap a model.", buckets=_SWAPS, registry=own
        )
        self.failed_swaps = Counter(
            "sparsegroup_failed_swaps", "Releases that were refused or could not be fetched.", registry=own
        )
        self.values = Counter(
            "sparsegroup_values", "Values of a sample of the requests, by column.", ["column"], registry=own
        )
        self.unseen = Counter(
            "sparsegroup_unseen_values",
            "Values among sparsegroup_values that the model has no row for: nearly all, if they are written in another "
            "way than in the training log.",
            ["column"],
            registry=own,
        )
        self.release = Gauge("sparsegroup_release", "Number of the release that serves.", registry=own)
        self.release_bytes = Gauge("sparsegroup_release_bytes", "Bytes of the release that serves.", registry=own)
        self.pinned = Gauge("sparsegroup_pinned", "1 while a rollback holds the release.", registry=own)
        self.age = Gauge(
            "sparsegroup_model_age_seconds", "Seconds since the last rows that the model has read.", registry=own
        )

    def measure_age(self, age: Callable[[], float | None]) -> None:
        """Take the age of the model from a function; None is NaN."""
        self.age.set_function(lambda: float("nan") if (seconds := age()) is None else seconds)

    def count_values(self, found: Mapping[str, tuple[int, int]]) -> None:
        """Count the values of some columns, and their values without a row."""
        for column, (values, unseen) in found.items():
            self.values.labels(column).inc(values)
            self.unseen.labels(column).inc(unseen)

    def text(self) -> bytes:
        """All figures in Prometheus' text format."""
        return generate_latest(self.registry)
