"""Turns run folders (metrics.jsonl, config.json) into report.html: what was trained, how, and how well it went.

One page without other files or network, written again at each checkpoint: it copes with runs that are under way, were
cut short, or lack a phase. No TensorFlow.
"""

from bert_tf.report.page import write_report

__all__ = ["write_report"]
