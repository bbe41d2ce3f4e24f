"""The programs: each turns a command line into one call of the packages above it."""
