"""What a reader leaves out because it cannot be used: counted, named, and no more of it than the user allows."""

from __future__ import annotations

from bert_tf.base.errors import UserError

_NUM_KEPT = 20


class BadRecords:
    """Counts the records that are left out, and keeps what is wrong with the first ones.

    Args:
      most: so many may be left out, by --max_bad_records.
      kind: what a record is called: "line", "sentence".
      file: what the error names before the fault; "" if the faults name their files.
    """

    def __init__(self, most: int, kind: str, file: str = ""):
        self._most, self._kind, self._file = most, kind, file
        self.num, self.named = 0, list[str]()

    def add(self, fault: str) -> None:
        """Raises: UserError, with the `fault`, if there are now too many."""
        self.num += 1
        self.named += [fault] if self.num <= _NUM_KEPT else []
        if self.num > self._most:
            too_many = f"more than {self._most:,} bad {self._kind}s, now " if self._most else ""
            place = f"{self._file}, " if self._file else ""
            others = f"leave up to N such {self._kind}s out with --max_bad_records=N"
            raise UserError(f"{too_many}{place}{fault}; correct it, or {others}")

    def describe(self, num_named: int = 3) -> str:
        """How many were left out, and what is wrong with the first ones; "" if none was."""
        if not self.num:
            return ""
        named = "; ".join(self.named[:num_named]) + ("; ..." if self.num > num_named else "")
        return f"{self.num:,} {self._kind}(s) left out: {named}"
