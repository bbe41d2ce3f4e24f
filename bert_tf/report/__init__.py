"""Turns run folders (metrics.jsonl, config.json) into report.html: what was trained, how, and with what result.

The page is self-contained and rewritten at each checkpoint; it also shows unfinished and interrupted runs. No
TensorFlow is imported.
"""

from bert_tf.report.page import write_page

__all__ = ["write_page"]
