"""Turns run folders (metrics.jsonl, config.json) into report.html: what was trained, how, and with what result.

One self-contained page, rewritten at each checkpoint; it also shows unfinished and interrupted runs. No TensorFlow.
"""

from bert_tf.report.page import write_report

__all__ = ["write_report"]
