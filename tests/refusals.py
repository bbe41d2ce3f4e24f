"""What a test says of a mistake: the call is refused with these words."""

from __future__ import annotations

from typing import Any, Callable

import pytest

from bert_tf.base.errors import UserError


def refused(message: str, call: Callable[..., Any], *arguments: Any, **named: Any) -> None:
    """Fails unless the call raises a `UserError` of one line, in which the pattern `message` is found."""
    with pytest.raises(UserError, match=message) as raised:
        call(*arguments, **named)
    text = str(raised.value)
    del raised  # its traceback holds this frame, and with it the locks of what was called, until Python finds the cycle
    assert "\n" not in text
