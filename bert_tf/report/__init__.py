"""Turns run folders (metrics.jsonl, config.json) into report.html: what was trained, how, and how well it went.

One page without other files or network, written again at each checkpoint, of runs in whatever state. No TensorFlow.
"""

from bert_tf.report.page import write_report

__all__ = ["write_report"]
