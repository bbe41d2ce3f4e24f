"""How a setting is declared in a settings class (`setting`), and read by other modules (`Setting`)."""

from __future__ import annotations

import argparse
import dataclasses
import operator
from collections.abc import Iterator, Mapping
from typing import Any, Callable, TypeVar, Union

from bert_tf.base.command_line import expand_home, parse_number, parse_switch, parse_whole, suggestion
from bert_tf.base.errors import UserError

# Far beyond what anyone trains with, so that a typing error does not start a run that never ends.
LARGEST = 100_000_000

Number = Union[int, float]
Values = TypeVar("Values")
# For the attributes at_least, above, at_most and below: in words, and as functions.
_COMPARISONS = (("of at least", operator.ge), ("above", operator.gt), ("at most", operator.le), ("below", operator.lt))
_PARSE: dict[str, Callable[[str], Any]] = {"bool": parse_switch, "int": parse_whole, "float": parse_number, "str": str}


@dataclasses.dataclass(frozen=True)
class Setting:
    """The declaration of one setting.

    Attributes:
      kind: "bool", "int", "float" or "str".
      default: None if there is none, or if another setting decides.
      at_least, above, at_most, below: the range of a number.
      choices: the only allowed texts; empty: any.
      word: a text that is allowed instead of a number.
      is_required: a program refuses to start without it.
      is_fixed: must not change within a run, because updates depend on it.
      is_flag: whether programs have a flag for it; else it is computed.
      variable: the environment variable by which launchers take it; empty: none.
      actions: the actions of bertPrep that read it, separated by spaces.
      bare: the value if only the option's name is typed, for options of bertPrep.
    """

    name: str
    kind: str
    default: Any
    help: str = ""
    at_least: Number | None = None
    above: Number | None = None
    at_most: Number | None = None
    below: Number | None = None
    choices: tuple[Any, ...] = ()
    word: str = ""
    is_required: bool = False
    is_fixed: bool = False
    is_flag: bool = True
    variable: str = ""
    actions: str = ""
    bare: Any = None

    @property
    def is_path(self) -> bool:
        """Whether it takes a path, or several: its name says so."""
        return self.name.endswith(("_dir", "_file", "_files", "_path", "_checkpoint"))

    @property
    def _bounds(self) -> list[tuple[str, Callable[[Any, Any], bool], Number]]:
        """The limits of a number: the comparison in words and as a function, and the bound."""
        highest = LARGEST if self.kind == "int" and self.at_most is None else self.at_most
        limits = (self.at_least, self.above, highest, self.below)
        return [(*kind, limit) for kind, limit in zip(_COMPARISONS, limits) if limit is not None]

    @property
    def rule(self) -> str:
        """What a value must be, as the end of the sentence "it must be ..."."""
        if self.kind == "bool":
            return "1, 0, true, false, yes or no"
        if self.choices:
            return f"one of {', '.join(map(str, self.choices))}"
        if self.kind == "str":
            return "a text, not empty"
        bounds = (f"{words} {bound:{',' if isinstance(bound, int) else 'g'}}" for words, _, bound in self._bounds)
        kind = "a whole number" if self.kind == "int" else "a number"
        return f"{kind} {', and '.join(bounds)}".rstrip() + (f", or {self.word}" if self.word else "")

    def parse(self, text: str) -> Any:
        """The value of a text. Raises ValueError if the text does not follow the rule."""
        if self.word and text == self.word:
            return text
        value = expand_home(text) if self.is_path else _PARSE[self.kind](text)
        if not text or not self.allows(value):  # such as --init_checkpoint=$UNSET
            raise ValueError
        return value

    def allows(self, value: Any) -> bool:
        """Whether a value follows the rule; None does if it is the default."""
        if value is None:
            return self.default is None
        if self.choices:
            return value in self.choices
        if self.kind not in ("int", "float") or (self.word and value == self.word):
            return True
        return value == value and all(compare(value, bound) for _, compare, bound in self._bounds)  # NaN is refused

    def refusal(self, name: str, value: Any) -> UserError:
        """The error for a value that does not follow the rule; `name` is what the user calls the setting."""
        return UserError(f"{name}={value}: must be {self.rule}")


def setting(default: Any, help: str = "", **declared: Any) -> Any:
    """A field of a settings class; `declared` are further attributes of `Setting`."""
    return dataclasses.field(default=default, metadata={"help": help, **declared})


def with_default(cls: type, name: str, default: Any) -> Any:
    """A setting that `cls` declares, declared again for another class with another default."""
    return setting(default, **cls.__dataclass_fields__[name].metadata)  # type: ignore[attr-defined]


def same_setting(cls: type, name: str) -> Any:
    """A setting that `cls` declares, declared again for another class."""
    return with_default(cls, name, getattr(cls, name))


def pick_settings(cls: type[Values], source: Any, **overrides: Any) -> Values:
    """A `cls` object with `overrides`, else with the attributes of `source`, else (missing or None) with defaults."""
    values = {field.name: getattr(source, field.name, None) for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    return cls(**{**{name: value for name, value in values.items() if value is not None}, **overrides})


def settings_of(*classes: type) -> Iterator[Setting]:
    """The settings that classes declare, in order; of two with the same name the later one."""
    declared = {field.name: field for cls in classes for field in dataclasses.fields(cls) if field.metadata}
    for field in declared.values():
        yield Setting(field.name, str(field.type).split(" | ")[0], field.default, **field.metadata)


def find_setting(name: str, *classes: type) -> Setting:
    return next(declared for declared in settings_of(*classes) if declared.name == name)


def argument_type(declared: Setting) -> Callable[[str], Any]:
    """The setting's `parse` for argparse, with an error that names the rule and the choice most like the text."""

    def convert(text: str) -> Any:
        try:
            return declared.parse(text)
        except ValueError:
            hint = suggestion(text, map(str, declared.choices))
            raise argparse.ArgumentTypeError(f"{text!r} must be {declared.rule}{hint}") from None

    return convert


def check(values: Any) -> None:
    """Raises `UserError` if a field of a settings object does not follow its declaration."""
    for declared in settings_of(type(values)):
        value = getattr(values, declared.name)
        if not declared.allows(value):
            raise declared.refusal(declared.name, value)


def with_variable(*classes: type) -> Iterator[Setting]:
    """The settings of the classes that have an environment variable; one that two classes declare comes twice."""
    for cls in classes:
        yield from (declared for declared in settings_of(cls) if declared.variable)


def from_variables(environ: Mapping[str, str], *classes: type) -> dict[str, Any]:
    """The values of settings whose variable is set, and not empty. Raises `UserError` for an invalid one."""
    values = {}
    for declared in with_variable(*classes):
        if text := environ.get(declared.variable):
            try:
                values[declared.name] = declared.parse(text)
            except ValueError:
                raise declared.refusal(declared.variable, text) from None
    return values


def fixed_settings(values: Any) -> dict[str, Any]:
    """The fields of a settings object that must not change within a run."""
    return {each.name: getattr(values, each.name) for each in settings_of(type(values)) if each.is_fixed}
