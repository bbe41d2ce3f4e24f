"""Every setting, declared once: default, help, range, whether it is fixed within a run, and its launcher variable.

From these declarations come the programs' flags (`programs.flags`), bertPrep's options (`programs.prepare`), the
checks, a run's identity, the launchers' arguments and variables (`launch`), the variables that
scripts/docker/launch.sh passes on, and docs/settings.md. So a new setting is one field here, or in the settings class
of its task, and its use.
"""
