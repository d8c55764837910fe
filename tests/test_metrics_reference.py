"""Training metrics, which docs/reference/metrics.md lists, are described once."""

from collections import Counter

from astraflow.contract.ids import Version
from astraflow.contract.training_metrics import TRAINING_METRICS, MetricGroup, training_metric
from astraflow.contract.weight_reports import VersionReport


def test_metric_names_and_labels_are_unique_and_can_be_looked_up() -> None:
    for names in ([metric.name for metric in TRAINING_METRICS], [metric.label for metric in TRAINING_METRICS]):
        assert [name for name, count in Counter(names).items() if count > 1] == []
    assert [training_metric(metric.name) for metric in TRAINING_METRICS] == list(TRAINING_METRICS)


def test_unlisted_metrics_keep_their_name_unless_it_is_invalid() -> None:
    other = training_metric("tis_cut")
    assert other is not None
    assert (other.label, other.group) == ("tis_cut", MetricGroup.OTHER)
    for name in ("", "A", "x" * 41, "a/b", "<b>", "1a"):
        assert training_metric(name) is None


def test_publish_measurements_are_not_step_metrics() -> None:
    report = VersionReport(version=Version(1), published_at=1.0, full_bytes=2, sent_bytes=2)
    assert [name for name in report.metrics() if training_metric(name) is not None] == []
