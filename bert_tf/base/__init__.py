"""Code that is not about BERT: errors, signals, files, progress, the command line. Imports no other package of ours."""
