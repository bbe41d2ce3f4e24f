"""The compiler's figures for GPUs: the plan agrees with them, and its text is read rightly."""

import pytest

from benchmarks.finished import Finished
from benchmarks.gpu_program.kernels import kernels
from benchmarks.gpu_program.report import RESULTS
from benchmarks.gpu_program.rows import Row
from bert_tf.memory.plan import predict

LINES = {Row(**line["row"]): line for line in Finished(RESULTS, {}).lines}
OURS = {row: line for row, line in LINES.items() if "memory" in line and row.part != "peer"}
# A loop of four turns over a matmul in half precision and a fusion that reads one slice of its second operand.
PROGRAM = """HloModule m
fused {
  p0 = f16[128,64]{1,0} parameter(0)
  p1 = f32[4,128,64]{2,1,0} parameter(1)
  p2 = s32[] parameter(2)
  zero = s32[] constant(0)
  slice = f32[1,128,64]{2,1,0} dynamic-slice(p1, p2, zero, zero), dynamic_slice_sizes={1,128,64}
  bits = f32[128,64]{1,0} bitcast(slice)
  wide = f32[128,64]{1,0} convert(p0)
  sum = f32[128,64]{1,0} add(wide, bits)
  ROOT root = f32[128,64]{1,0} tanh(sum)
}

body {
  state = (s32[], f16[128,256], f16[256,64], f32[4,128,64]) parameter(0)
  n = s32[] get-tuple-element(state), index=0
  a = f16[128,256]{1,0} get-tuple-element(state), index=1
  b = f16[256,64]{1,0} get-tuple-element(state), index=2
  c = f32[4,128,64]{2,1,0} get-tuple-element(state), index=3
  dot = f16[128,64]{1,0} custom-call(a, b), custom_call_target="__cublas$gemm", backend_config={"alpha_real":1,\
"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"],"rhs_contracting_dimensions":["0"],\
"lhs_batch_dimensions":[],"rhs_batch_dimensions":[]}}
  f = f32[128,64]{1,0} fusion(dot, c, n), kind=kLoop, calls=fused
  ROOT next = (s32[], f16[128,256], f16[256,64], f32[4,128,64]) tuple(n, a, b, /*index=3*/c)
}

ENTRY main {
  s = (s32[], f16[128,256], f16[256,64], f32[4,128,64]) parameter(0)
  ROOT loop = (s32[], f16[128,256], f16[256,64], f32[4,128,64]) while(s), condition=cond, body=body
}
"""


@pytest.mark.parametrize("row", [row for row in OURS if not row.packing], ids=lambda row: row.title)
def test_the_plan_is_within_a_twentieth_of_the_compiler_s_memory(row):
    assert predict(row.workload(row.num_layers)).total / LINES[row]["memory"] == pytest.approx(1, abs=0.05)


def test_an_unpacked_update_asks_the_host_for_nothing():
    plain = [line["figures"] for row, line in OURS.items() if not row.packing]
    assert plain and not any("host" in name for figures in plain for name in figures)


def test_launches_traffic_and_arithmetic_of_a_program():
    asked, matmul, fusion = kernels(PROGRAM, 4)
    assert (asked.kind, asked.times) == ("copy to the host", 4)
    assert (matmul.kind, matmul.times, matmul.dtype, matmul.shape) == ("matmul", 4, "f16", (1, 128, 64, 256))
    assert matmul.flops == 2 * 128 * 64 * 256 and matmul.bytes == 2 * (128 * 256 + 256 * 64 + 128 * 64)
    assert fusion.bytes == 128 * 64 * (2 + 4 + 4) + 4 and fusion.flops == 128 * 64 * 10
    known = PROGRAM.replace("body=body", 'body=body, backend_config={"known_trip_count":{"n":"8"}}')
    assert [(kernel.kind, kernel.times) for kernel in kernels(known, 4)] == [("matmul", 8), ("fusion", 8)]
