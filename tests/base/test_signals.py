"""How a training is stopped by signals."""

import os
import signal

import pytest

from bert_tf.base.signals import noted_stop_signals


def test_ctrl_c_is_noted_once_as_other_stop_signals_and_a_second_one_does_not_wait(capsys):
    before = signal.getsignal(signal.SIGINT)
    with noted_stop_signals() as received:
        for number in signal.SIGTERM, signal.SIGINT:
            os.kill(os.getpid(), number)
        assert received == [signal.SIGTERM, signal.SIGINT]
        assert "the running update is finished and saved; a second one ends at once" in capsys.readouterr().err
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
