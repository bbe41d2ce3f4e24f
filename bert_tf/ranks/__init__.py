"""Ranks. In: what each process has. Out: what all of them have, reduced or broadcast; one process needs no library."""
