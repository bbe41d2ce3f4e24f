"""Examines this machine, and says what would keep a training from working.

What the launchers check, too, is in `base.machine`. ``python -m bert_tf.doctor`` must
work even if TensorFlow, Horovod or any other package is missing or broken, so only the standard library is imported
here, and everything else in separate processes with a time limit.
"""
