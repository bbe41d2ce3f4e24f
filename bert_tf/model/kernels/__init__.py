"""The GPU's own kernels, in Triton: which they are, how they are compiled and kept, and how XLA's programs call them.

`attention` and `dropout_bits` hold the kernels, `compilation` compiles them for a card and keeps the result, `launching`
lets programs that XLA has compiled call them, and `fused_attention` is what a backend uses.
"""
