"""What has no domain: errors, signals, files, progress, the command line. Imports nothing of this project."""
