"""Define immutable records whose fields the type checker knows, and the names of `typing` that annotations use.

Written by hand instead of with dataclasses: importing `dataclasses` takes longer than starting Python. Importing
`typing` takes milliseconds, too; at run time its names mean nothing, because annotations are not evaluated.
"""

from __future__ import annotations

__all__ = ["IO", "Any", "NoReturn", "Self", "Value"]
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import IO, Any, ClassVar, NoReturn, Self, dataclass_transform
else:
    IO = Any = NoReturn = Self = object

    def dataclass_transform(**_options: object) -> Callable[[type], type]:
        """Do nothing at run time: only the type checker needs it, and importing `typing` takes time."""
        return lambda cls: cls


class _Unevaluated:
    """Stands for every name in an annotation whose value is not asked for."""

    def _same(self, *_operands: object) -> _Unevaluated:
        return self

    __call__ = __getitem__ = __or__ = __ror__ = _same

    def __getattr__(self, name: str) -> _Unevaluated:
        return self


class _UnevaluatedNames(dict[str, object]):
    """The globals of a function that finds `_Unevaluated` under every name."""

    def __missing__(self, name: str) -> _Unevaluated:
        return _Unevaluated()


def _field_names(namespace: dict[str, Any]) -> tuple[str, ...]:
    """Return the names that a class body annotates.

    From Python 3.14 on, a module without `from __future__ import annotations` has a function for them in the class
    body (PEP 649, PEP 749). Its names are not looked up: those that only a type checker imports are not there. The
    standard library's `annotationlib` does the same; importing it takes longer than a whole quick verb.
    """
    if "__annotations__" in namespace:
        return tuple(namespace["__annotations__"])
    annotate = namespace.get("__annotate_func__")
    if annotate is None:
        return ()
    code, names = annotate.__code__, _UnevaluatedNames()
    cells = []
    for name, cell in zip(code.co_freevars, annotate.__closure__ or (), strict=True):
        try:
            cell.cell_contents  # noqa: B018
        except ValueError:  # `__classdict__` is filled when the class is made, a later local name later still
            cell = type(cell)(names if name == "__classdict__" else _Unevaluated())  # noqa: PLW2901
        cells.append(cell)
    unevaluated = type(annotate)(code, names, closure=tuple(cells))
    return tuple(unevaluated(2))  # annotationlib.Format.VALUE_WITH_FAKE_GLOBALS


class _ValueType(type):
    """Make a slot of each annotated field, and take its default, if any, out of the class."""

    def __new__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> _ValueType:
        fields = _field_names(namespace) if bases else ()
        defaults = {field: namespace.pop(field) for field in fields if field in namespace}
        made = super().__new__(cls, name, bases, namespace | {"__slots__": fields, "_defaults": defaults})
        setters = tuple((field, getattr(made, field).__set__) for field in fields)
        type.__setattr__(made, "_setters", setters)
        type.__setattr__(made, "_fields", fields)
        return made


@dataclass_transform(kw_only_default=True, frozen_default=True)
class Value(metaclass=_ValueType):
    """A frozen record of the fields that a subclass annotates. Build it by keyword; copy it with `replace`."""

    _defaults: ClassVar[dict[str, Any]]
    _fields: ClassVar[tuple[str, ...]]
    _setters: ClassVar[tuple[tuple[str, Callable[[object, object], None]], ...]]

    def __init__(self, **values: Any) -> None:
        if self._defaults:
            values = self._defaults | values
        try:
            for name, set_field in self._setters:
                set_field(self, values[name])
        except KeyError as error:
            raise TypeError(f"{type(self).__name__} needs the field {error.args[0]}") from None
        if len(values) != len(self._setters):
            unknown = ", ".join(sorted(values.keys() - set(self.fields())))
            raise TypeError(f"{type(self).__name__} has no field {unknown}")

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable; use replace({name}=...)")

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and all(getattr(self, name) == getattr(other, name) for name in self.fields())

    __hash__ = None  # type: ignore[assignment]  # a field may hold a dict

    @classmethod
    def fields(cls) -> tuple[str, ...]:
        """Return the names of the fields, in the order in which the class annotates them."""
        return cls._fields

    def as_dict(self) -> dict[str, Any]:
        """Return the fields by name."""
        return {name: getattr(self, name) for name in self.fields()}

    def replace(self, **changes: Any) -> Self:
        """Return a copy that differs in these fields."""
        copy = object.__new__(type(self))
        for name, set_field in self._setters:
            set_field(copy, changes.pop(name) if name in changes else getattr(self, name))
        if changes:
            raise TypeError(f"{type(self).__name__} has no field {', '.join(sorted(changes))}")
        return copy
