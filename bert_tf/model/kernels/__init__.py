"""Our GPU kernels, in Triton: what they compute, how they are compiled and cached, how XLA's programs call them.

`attention`, `between_matmuls`, `word_loss` and `dropout_bits` hold the kernels; `requirements` says where they can be
used. `compilation` compiles them for a card and caches the result, and `launching` lets programs that XLA has compiled
call them. A backend uses the operations of `fused_attention` and `fused_blocks`.
"""
