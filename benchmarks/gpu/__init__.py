"""`python -m benchmarks gpu`: all measurements on a GPU."""
