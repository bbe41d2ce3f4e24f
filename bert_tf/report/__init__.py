"""report.html: what a training did and how well, from its run folders, in one self-contained page.

No TensorFlow here. The page is written again at each checkpoint, so everything in it copes with
runs that are under way, were cut short, or lack a phase.
"""

from bert_tf.report.document import write_curve_svg, write_report

__all__ = ["write_curve_svg", "write_report"]
