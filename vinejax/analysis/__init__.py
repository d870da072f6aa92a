"""The results of a run for people: accuracy with intervals, episodes as rows, and the report."""

from vinejax.analysis.accuracy import accuracy_metrics, paired_interval

__all__ = ["accuracy_metrics", "paired_interval"]
