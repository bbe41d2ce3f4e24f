"""Looks at this machine, and at named others, and says what would keep a training from working.

``python -m bert_tf.doctor`` must speak where TensorFlow, Horovod or any other package is missing or broken, so only the
standard library is imported here, and everything else in processes of their own with a time limit.
"""
