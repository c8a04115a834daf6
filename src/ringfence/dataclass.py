"""Dataclasses that are cheap to import: what they can do is written when it is first asked of them.

`python -c` takes eleven milliseconds, and the standard decorator half a millisecond for each of the 130 records that
`ringfence run` imports. Here a class takes a tenth of that, and its `__init__` is compiled when objects of it are made
again and again. To type checkers these are the names of the standard library; at run time they are the part of it that
is used here, and `dataclasses.asdict`, `fields`, `replace` and `is_dataclass` take them for their own. Like the
standard ones with `slots=True` they are made anew, so no method of them may call `super()`.
"""

from __future__ import annotations

import operator
import types
from collections.abc import Callable, Mapping
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

__all__ = ["dataclass", "field", "fields", "replace"]

T = TypeVar("T")
_OFTEN = 16
"""After so many objects of a class its `__init__` is worth compiling; before, it takes longer than it saves."""
_WIDE = 8
"""From so many fields on, becoming an open class and itself again takes less than setting each field by a call."""
_MISSING: Any = type("_Missing", (), {"__repr__": lambda _: "<nothing given>"})()


class Field:
    """What is said of one field."""

    __slots__ = ("compare", "default", "factory", "init", "kw_only", "name", "repr", "type")

    name: str
    type: str

    def __init__(self, default: Any, factory: Callable[[], Any], *, init: bool, repr: bool, compare: bool) -> None:
        """Its name and type are in the class it is written in."""
        self.default, self.factory, self.init, self.repr, self.compare = default, factory, init, repr, compare
        self.kw_only = False

    @property
    def is_required(self) -> bool:
        """Whether whoever makes an object has to give it."""
        return self.default is _MISSING and self.factory is _MISSING


class _Shape:
    """What the methods of a class go by; the standard library asks its `__dataclass_params__` for `frozen` too."""

    __slots__ = ("_copied", "fields", "frozen", "key", "slots")

    _copied: tuple[dict[str, int], Callable[[object], Any]] | None

    def __init__(self, fields: dict[str, Field], *, frozen: bool, slots: bool) -> None:
        self._copied = None
        self.fields, self.frozen, self.slots = fields, frozen, slots
        compared = [each.name for each in fields.values() if each.compare]
        self.key: Callable[[object], Any] = operator.attrgetter(*compared) if compared else lambda _: ()

    def copied(self) -> tuple[dict[str, int], Callable[[object], Any]]:
        """Return where each value stands among those that `__init__` takes in their order, and what reads them all."""
        if self._copied is None:
            given = [each for each in self.fields.values() if each.init]
            in_order = len(given) > 1 and not any(each.kw_only for each in given)  # of one, no tuple would be read
            places = {each.name: place for place, each in enumerate(given)} if in_order else {}
            self._copied = places, operator.attrgetter(*places) if places else lambda _: ()
        return self._copied


class _StandardFields:
    """Describes a class to the functions of the standard library, which is not imported before they ask."""

    def __get__(self, _: object, owner: type) -> Mapping[str, Any]:
        import dataclasses

        def standard(each: Field) -> Any:
            given = {"default": each.default, "default_factory": each.factory}
            given = {name: value for name, value in given.items() if value is not _MISSING}
            return dataclasses.field(
                **given, init=each.init, repr=each.repr, compare=each.compare, kw_only=each.kw_only
            )

        listed = [(each.name, each.type, standard(each)) for each in _shape(owner).fields.values()]
        made: Any = dataclasses.make_dataclass(owner.__name__, listed)
        described: Mapping[str, Any] = made.__dataclass_fields__
        type.__setattr__(owner, "__dataclass_fields__", described)
        return described


def _shape(cls: type) -> _Shape:
    shape: _Shape = cls.__dataclass_params__  # type: ignore[attr-defined]
    return shape


def _lazy_dataclass(
    cls: type[T] | None = None,
    /,
    *,
    frozen: bool = False,
    slots: bool = False,
    weakref_slot: bool = False,
    eq: bool = True,
    order: bool = False,
    kw_only: bool = False,
) -> Any:
    """Make a dataclass of a class, as the standard decorator does."""

    def made(cls: type[T]) -> type[T]:
        space = dict(cls.__dict__)
        inherited = _inherited(cls)
        own = _taken_out(space, slots=slots, kw_only=kw_only)
        shape = _Shape(inherited | own, frozen=frozen, slots=slots)
        if slots:
            names = (name for name in own if name not in inherited)
            space["__slots__"] = (*names, "__weakref__") if weakref_slot else tuple(names)
        _add_methods(space, shape, eq=eq, order=order)
        for made_by_type in ("__dict__", "__weakref__"):
            space.pop(made_by_type, None)
        metaclass: Any = type(cls)
        new: type[T] = metaclass(cls.__name__, cls.__bases__, space)
        new.__qualname__ = cls.__qualname__
        if "__init__" not in space:
            _write_when_called(new, shape)
        return new

    return made if cls is None else made(cls)


def _inherited(cls: type) -> dict[str, Field]:
    fields: dict[str, Field] = {}
    for base in reversed(cls.__mro__[1:]):
        shape = base.__dict__.get("__dataclass_params__")
        if isinstance(shape, _Shape):
            fields |= shape.fields
        elif shape is not None:
            raise TypeError(f"{cls.__name__} is made of {base.__name__}, a dataclass of the standard library")
    return fields


def _taken_out(space: dict[str, Any], *, slots: bool, kw_only: bool) -> dict[str, Field]:
    """Take the fields that a class body names, and their defaults, out of it."""
    fields = {}
    for name, annotation in space.get("__annotations__", {}).items():
        if annotation.startswith("ClassVar["):
            continue
        value = space.pop(name, _MISSING)
        each = value if isinstance(value, Field) else _lazy_field(default=value)
        if each.default.__class__.__hash__ is None:
            raise ValueError(f"all objects would share the default of {name}; fix: give it a default_factory")
        if not slots and each.default is not _MISSING:
            space[name] = each.default
        each.name, each.type, each.kw_only = name, annotation, kw_only
        fields[name] = each
    return fields


def _add_methods(space: dict[str, Any], shape: _Shape, *, eq: bool, order: bool) -> None:
    """Add what the body does not have; none of it is made for this class but its `__init__`."""
    space["__dataclass_params__"], space["__dataclass_fields__"] = shape, _StandardFields()
    positional = (each.name for each in shape.fields.values() if each.init and not each.kw_only)
    space.setdefault("__match_args__", tuple(positional))
    space.setdefault("__repr__", _repr)
    if eq:
        space.setdefault("__eq__", _eq)
        if space.get("__hash__") is None:
            space["__hash__"] = _hash if shape.frozen else None
    if order:
        space |= _ORDER
    if shape.frozen:
        space |= {"__setattr__": _refuse_to_set, "__delattr__": _refuse_to_delete}
        if shape.slots:
            space |= {"__getstate__": _get_state, "__setstate__": _set_state}


def _write_when_called(cls: type, shape: _Shape) -> None:
    made = 0

    def __init__(self: object, /, *args: Any, **kwargs: Any) -> None:  # noqa: N807  it stands in for one
        nonlocal made
        made += 1
        if made < _OFTEN and _filled(self, shape, args, kwargs):
            return
        written = _written(cls, shape)
        cls.__init__ = written  # type: ignore[misc]
        written(self, *args, **kwargs)

    cls.__init__ = __init__  # type: ignore[misc]


def _filled(self: object, shape: _Shape, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Do what an `__init__` would do; False, with nothing done, where that would say that something is wrong."""
    wanted = [each for each in shape.fields.values() if each.init]
    given = dict(zip((each.name for each in wanted if not each.kw_only), args, strict=False)) | kwargs
    known = sum(each.name in given for each in wanted)
    if known != len(args) + len(kwargs) or any(each.is_required and each.name not in given for each in wanted):
        return False
    put = object.__setattr__ if shape.frozen else setattr
    for name, each in shape.fields.items():
        if each.init and name in given:
            put(self, name, given[name])
        elif each.factory is not _MISSING:
            put(self, name, each.factory())
        elif each.default is not _MISSING and (each.init or shape.slots):
            put(self, name, each.default)
    if hasattr(self, "__post_init__"):
        self.__post_init__()
    return True


def _written(cls: type, shape: _Shape) -> Callable[..., None]:
    """Compile the `__init__` of `cls`."""
    known: dict[str, Any] = {"_set": object.__setattr__, "_missing": _MISSING}
    parameters: dict[bool, list[str]] = {False: [], True: []}
    values: dict[str, str] = {}
    for name, each in shape.fields.items():
        value = name
        if each.factory is not _MISSING:
            known[f"_factory_{name}"] = each.factory
            value = f"_factory_{name}()" + (f" if {name} is _missing else {name}" if each.init else "")
            parameter = f"{name}=_missing"
        elif each.default is not _MISSING:
            known[f"_default_{name}"] = each.default
            value = name if each.init else f"_default_{name}"
            parameter = f"{name}=_default_{name}"
        else:
            parameter = name
        if each.init:
            parameters[each.kw_only].append(parameter)
        elif each.factory is _MISSING and (each.default is _MISSING or not shape.slots):
            continue
        values[name] = value
    body = _filling(cls, shape, values, known)
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    star = ["*"] if parameters[True] else []
    head = ", ".join(["self", *parameters[False], *star, *parameters[True]])
    exec(f"def __init__({head}):\n " + "\n ".join(body or ["pass"]), known)  # noqa: S102  as the standard library does
    written: types.FunctionType = known["__init__"]
    written.__qualname__, written.__module__ = f"{cls.__qualname__}.__init__", cls.__module__
    return written


def _filling(cls: type, shape: _Shape, values: dict[str, str], known: dict[str, Any]) -> list[str]:
    """Return the lines that give an object of `cls` its `values`.

    A frozen object refuses to be written to, so that every field takes a call. A wide one is, until it is filled, of a
    class that is laid out the same and refuses nothing, which nobody else ever sees.
    """
    openly = [f"self.{name} = {value}" for name, value in values.items()]
    if not shape.frozen:
        return openly
    one_by_one = [f"_set(self, {name!r}, {value})" for name, value in values.items()]
    slots: tuple[str, ...] = getattr(cls, "__slots__", ())
    if len(values) < _WIDE or cls.__bases__ != (object,) or slots != tuple(shape.fields):
        return one_by_one
    known["_own"] = cls
    known["_open"] = type(cls.__name__, (), {"__slots__": slots})
    return [
        "if self.__class__ is _own:",
        *(f" {line}" for line in ("_set(self, '__class__', _open)", *openly, "self.__class__ = _own")),
        "else:",  # what was made of the class may be laid out otherwise
        *(f" {line}" for line in one_by_one),
    ]


@recursive_repr()
def _repr(self: object) -> str:
    shown = (each.name for each in _shape(type(self)).fields.values() if each.repr)
    return f"{type(self).__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"


def _by_key(compare: Callable[[Any, Any], Any]) -> Callable[[object, object], Any]:
    def method(self: object, other: object) -> Any:
        if other.__class__ is not self.__class__:
            return NotImplemented
        key = _shape(type(self)).key
        return compare(key(self), key(other))

    return method


_eq = _by_key(operator.eq)
_ORDER = {f"__{each.__name__}__": _by_key(each) for each in (operator.lt, operator.le, operator.gt, operator.ge)}


def _hash(self: object) -> int:
    return hash(_shape(type(self)).key(self))


def _refuse_to_set(_self: object, name: str, _value: object) -> NoReturn:
    from dataclasses import FrozenInstanceError

    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_to_delete(_self: object, name: str) -> NoReturn:
    from dataclasses import FrozenInstanceError

    raise FrozenInstanceError(f"cannot delete field {name!r}")


def _get_state(self: object) -> list[Any]:
    return [getattr(self, name) for name in _shape(type(self)).fields]


def _set_state(self: object, state: list[Any]) -> None:
    for name, value in zip(_shape(type(self)).fields, state, strict=True):
        object.__setattr__(self, name, value)


def _lazy_field(
    *,
    default: Any = _MISSING,
    default_factory: Callable[[], Any] = _MISSING,
    init: bool = True,
    repr: bool = True,
    compare: bool = True,
) -> Field:
    """Say of a field what its annotation does not."""
    return Field(default, default_factory, init=init, repr=repr, compare=compare)


def _lazy_fields(of: Any) -> tuple[Any, ...]:
    """Return the fields of a dataclass, or of what was made of one."""
    shape = of.__dataclass_params__
    if isinstance(shape, _Shape):
        return tuple(shape.fields.values())
    import dataclasses

    return dataclasses.fields(of)


def _lazy_replace(of: T, /, **changes: Any) -> T:
    """Return an object like `of` with other values, made as every other is."""
    shape = type(of).__dataclass_params__  # type: ignore[attr-defined]
    if isinstance(shape, _Shape):
        places, read = shape.copied()
        if places.keys() >= changes.keys() and places:
            values = list(read(of))
            for name, value in changes.items():
                values[places[name]] = value
            return type(of)(*values)
    same = {each.name: getattr(of, each.name) for each in _lazy_fields(of) if each.init and each.name not in changes}
    return type(of)(**same, **changes)


if TYPE_CHECKING:
    from dataclasses import dataclass, field, fields, replace
else:
    dataclass, field, fields, replace = _lazy_dataclass, _lazy_field, _lazy_fields, _lazy_replace
