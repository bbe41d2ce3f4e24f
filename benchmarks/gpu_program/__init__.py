"""`python -m benchmarks gpu_program`: what XLA's compiler makes of a step for GPUs that are not here."""
