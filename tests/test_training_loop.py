"""What a loop needs of the machine."""

import dataclasses

import pytest
from test_finetuning import settings

from bert_tf.base.errors import UserError
from bert_tf.training import loop
from bert_tf.training.loop import has_fast_bf16, make_blocks


def test_bfloat16_wants_avx512(tmp_path):
    def found(text, **environ):
        (tmp_path / "cpuinfo").write_text(text)
        return has_fast_bf16(environ, tmp_path / "cpuinfo")

    assert found("flags : fpu avx2 avx512f amx_bf16\n") and found("flags : avx512f\n", ONEDNN_MAX_CPU_ISA="DEFAULT")
    assert not found("flags : fpu avx2\n") and not found("flags : avx512f\n", ONEDNN_MAX_CPU_ISA="avx2")
    assert found("Features : fp asimd bf16\n"), "not x86: left to the library"


def test_bfloat16_is_refused_where_it_is_slower(monkeypatch):
    monkeypatch.setattr(loop, "has_fast_bf16", lambda: False)
    assert make_blocks(settings()).compute_dtype == "float32"
    with pytest.raises(UserError, match="--precision=bf16: this processor has no AVX-512"):
        make_blocks(dataclasses.replace(settings(), precision="bf16"))
