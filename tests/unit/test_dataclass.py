"""Our dataclasses are those of the standard library, to whoever uses one: each law is asked of both."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import subprocess
import sys
import weakref
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence import dataclass as ours

BOTH: list[Any] = [dataclasses, ours]


def classes(by: Any) -> SimpleNamespace:
    """Make the same classes with the decorator of one or the other."""
    dataclass, field = by.dataclass, by.field

    @dataclass(frozen=True, slots=True)
    class Point:
        kind: ClassVar[str] = "point"
        x: int
        y: int = 2
        seen: list[int] = field(default_factory=list, compare=False)
        secret: bytes = field(default=b"", repr=False)

        def sum(self) -> int:
            return self.x + self.y

    @dataclass(frozen=True, slots=True)
    class Named(Point):
        name: str = "nobody"

        def __post_init__(self) -> None:
            if not self.name:
                raise ValueError("nameless")

    @dataclass(slots=True)
    class Count:
        of: str
        number: int = field(default=7, init=False)
        left: Any = field(init=False, repr=False, compare=False)
        log: list[str] = field(default_factory=list, init=False)

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Words:
        first: str
        second: str = "b"

    @dataclass(frozen=True)
    class Open:
        x: int = 1

    @dataclass(frozen=True, slots=True, eq=False)
    class Only:
        x: int = 1

    @dataclass
    class Shown:
        x: int = field(default=1, init=False)

        def __setattr__(self, name: str, value: object) -> None:
            object.__setattr__(self, name, f"{value}!")

    @dataclass(slots=True)
    class Loud:
        x: object

        def __setattr__(self, name: str, value: object) -> None:
            object.__setattr__(self, name, f"{value}!")

    @dataclass(slots=True, weakref_slot=True, eq=False)
    class Held:
        fd: int

    @dataclass
    class Plain:
        x: int = 1
        y: list[int] = field(default_factory=list)

    @dataclass(frozen=True, slots=True, order=True)
    class Ranked:
        x: int
        y: str = ""

    @dataclass(frozen=True, slots=True)
    class Nothing:
        pass

    @dataclass(frozen=True, slots=True)
    class Own:
        x: int

        def __eq__(self, other: object) -> bool:
            return True

        def __hash__(self) -> int:
            return 5

        def __repr__(self) -> str:
            return "own"

    made = dict(locals())
    return SimpleNamespace(**{name: value for name, value in made.items() if isinstance(value, type)})


THEIRS, OURS = classes(dataclasses), classes(ours)


def said(work: Callable[[SimpleNamespace], Any], of: SimpleNamespace) -> Any:
    """Return what comes of it, an error as its kind and text."""
    try:
        return work(of)
    except (TypeError, ValueError, AttributeError) as error:
        return type(error), str(error)


def changed(count: Any, *, number: int) -> str:
    count.number = number
    return repr(count)


LAWS: dict[str, Callable[[SimpleNamespace], Any]] = {
    "an object shows its fields": lambda of: repr(of.Point(1, 3, [4], b"hidden")),
    "fields may be named": lambda of: repr(of.Point(y=1, x=2)),
    "a missing field is an error": lambda of: of.Point(),
    "two missing fields are an error": lambda of: of.Named(),
    "an unknown field is an error": lambda of: of.Point(1, z=2),
    "a field too many is an error": lambda of: of.Point(1, 2, [], b"", 5),
    "a field given twice is an error": lambda of: of.Point(1, x=2),
    "what is inherited comes first": lambda of: repr(of.Named(1, 2, [], b"", "n")),
    "what a body checks is checked": lambda of: of.Named(1, name=""),
    "factories make each its own": lambda of: of.Point(1).seen is of.Point(1).seen,
    "what has no place in init is a field all the same": lambda of: repr(of.Count("a")),
    "what has no place in init is not taken": lambda of: of.Count("a", 3),
    "what was never given is not there": lambda of: hasattr(of.Count("a"), "left"),
    "words only by name": lambda of: (repr(of.Words(first="a")), said(lambda of: of.Words("a"), of)),
    "an object has no other attributes": lambda of: hasattr(of.Point(1), "__dict__"),
    "an open one has": lambda of: vars(of.Open(5)),
    "a class has its defaults where it is open": lambda of: of.Open.x,
    "frozen is frozen": lambda of: setattr(of.Point(1), "x", 2),
    "frozen is frozen for what is no field": lambda of: setattr(of.Open(1), "other", 2),
    "nothing is deleted": lambda of: delattr(of.Point(1), "x"),
    "others change": lambda of: changed(of.Count("a"), number=1),
    "equal by value": lambda of: (
        of.Point(1) == of.Point(1),
        of.Point(1) == of.Point(2),
        of.Count("a") == of.Count("a"),
    ),
    "what is not compared does not count": lambda of: of.Point(1, 2, [1]) == of.Point(1, 2, [2]),
    "never equal to another class": lambda of: (of.Point(1) == of.Named(1), of.Point(1) == (1, 2)),
    "hashed by value": lambda of: len({of.Point(1), of.Point(1, 2, [9]), of.Point(2)}),
    "what changes has no hash": lambda of: hash(of.Count("a")),
    "without any words": lambda of: (repr(of.Plain()), vars(of.Plain(2)), of.Plain() == of.Plain(1, [])),
    "a default of the class is not an object's": lambda of: (vars(of.Shown()), of.Shown().x),
    "a body's own way to set is used": lambda of: of.Loud(1).x,
    "in order": lambda of: repr(sorted([of.Ranked(2), of.Ranked(1, "b"), of.Ranked(1)])),
    "equal ones in order": lambda of: (of.Ranked(1) <= of.Ranked(1), of.Ranked(1) > of.Ranked(1)),
    "in no order with others": lambda of: of.Ranked(1) < 1,
    "without an order": lambda of: of.Point(1) < of.Point(2),
    "nothing at all": lambda of: (of.Nothing() == of.Nothing(), repr(of.Nothing()), len({of.Nothing(), of.Nothing()})),
    "by identity": lambda of: (of.Only() == of.Only(), len({of.Only(), of.Only()})),
    "a body's own methods stay": lambda of: (of.Own(1) == 3, hash(of.Own(1)), repr(of.Own(1)), of.Point(1).sum()),
    "patterns": lambda of: [each.__match_args__ for each in (of.Point, of.Named, of.Count, of.Words, of.Nothing)],
    "slots": lambda of: [each.__slots__ for each in (of.Point, of.Named, of.Count, of.Nothing, of.Held)],
    "copies": lambda of: (copy.copy(of.Point(1)) == of.Point(1), repr(copy.deepcopy(of.Named(1, 2, [3])))),
    "what is no field is left": lambda of: (of.Point.kind, of.Point.__qualname__, of.Point.__module__),
    "replaced": lambda of: repr(dataclasses.replace(of.Named(1), y=5)),
    "replaced and checked": lambda of: dataclasses.replace(of.Named(1), name=""),
    "as a dict": lambda of: (dataclasses.asdict(of.Named(1)), dataclasses.asdict(of.Words(first="a"))),
    "known as a dataclass": lambda of: (dataclasses.is_dataclass(of.Point), dataclasses.is_dataclass(of.Count("a"))),
    "described": lambda of: [
        (each.name, each.type, each.init, each.repr, each.compare, each.kw_only)
        for each in (*dataclasses.fields(of.Named), *dataclasses.fields(of.Words))
    ],
}


@pytest.mark.parametrize("often", [1, 1000])
@pytest.mark.parametrize("law", LAWS)
def test_both_say_the_same(law: str, often: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ours, "_OFTEN", often)  # compiled for the first object, or never but for what is wrong
    # what both name is the function in which they are made, which is one
    assert said(LAWS[law], classes(ours)) == said(LAWS[law], THEIRS)


def test_after_some_objects_an_init_is_compiled_and_does_the_same() -> None:
    point = classes(ours).Point
    first = point.__init__
    objects = [point(number, secret=b"s") for number in range(40)]
    assert point.__init__ is not first
    assert {(each.y, each.secret, tuple(each.seen)) for each in objects} == {(2, b"s", ())}
    assert [each.x for each in objects] == list(range(40))


@pytest.mark.parametrize("by", BOTH)
def test_a_changed_copy_and_the_names_of_fields(by: ModuleType) -> None:
    point = OURS.Named(1, name="n")
    changed = by.replace(point, x=4)
    assert (changed.x, changed.name, point.x) == (4, "n", 1)
    assert [each.name for each in by.fields(point)] == [each.name for each in by.fields(OURS.Named)]
    assert by.fields(OURS.Named)[0].name == "x"
    theirs = by.replace(THEIRS.Named(1), name="n")
    assert (theirs.name, len(by.fields(theirs))) == ("n", 5)
    with pytest.raises(TypeError):
        by.replace(point, unknown=4)


@given(st.integers(), st.integers(), st.integers(), st.integers())
def test_equal_objects_have_equal_hashes_and_unequal_fields_unequal_objects(a: int, b: int, c: int, d: int) -> None:
    one, other = OURS.Point(a, b), OURS.Point(c, d)
    assert (one == other) is ((a, b) == (c, d))
    assert one != other or hash(one) == hash(other)


@ours.dataclass(frozen=True, slots=True)
class Sent:
    """One that pickle can find."""

    x: int
    y: tuple[int, ...] = ()


def test_one_is_sent_to_another_process() -> None:
    assert pickle.loads(pickle.dumps(Sent(1, (2,)))) == Sent(1, (2,))


def test_the_standard_decorator_goes_on_from_one_of_ours_and_ours_not_from_one_of_theirs() -> None:
    @dataclasses.dataclass(frozen=True, slots=True)
    class Further(Sent):
        z: int = 3

    slots: tuple[str, ...] = Further.__slots__
    assert (repr(Further(1)), slots) == (f"{Further.__qualname__}(x=1, y=(), z=3)", ("z",))
    with pytest.raises(TypeError, match="a dataclass of the standard library"):

        @ours.dataclass(frozen=True, slots=True)
        class Wrong(THEIRS.Point):  # type: ignore[name-defined, misc]
            z: int = 3


def test_a_default_that_all_objects_would_share_is_refused() -> None:
    with pytest.raises(ValueError, match="default_factory"):

        @ours.dataclass(slots=True)
        class Wrong:
            x: list[int] = []  # noqa: RUF012


def test_an_object_that_holds_itself_is_shown() -> None:
    count = OURS.Count("a")
    count.log.append(count)
    assert "..." in repr(count)


def test_no_method_is_compiled_and_the_standard_library_not_imported_before_it_is_asked() -> None:
    program = (
        "import sys; from ringfence.dataclass import dataclass\n"
        "@dataclass(frozen=True, slots=True)\n"
        "class Point:\n"
        "    x: 'int'\n"
        "assert 'dataclasses' not in sys.modules and Point.__init__.__code__.co_varnames[0] == 'self'\n"
        "assert repr(Point(1)) == 'Point(x=1)' and Point(1) == Point(x=1) and 'dataclasses' not in sys.modules\n"
    )
    assert subprocess.run([sys.executable, "-I", "-c", program], check=False).returncode == 0


@pytest.mark.parametrize("weakref_slot", [False, True])
@pytest.mark.parametrize("by", BOTH)
def test_a_wide_frozen_record_is_filled_and_refuses_from_then_on(by: Any, *, weakref_slot: bool) -> None:
    seen: list[str] = []

    @by.dataclass(frozen=True, slots=True, weakref_slot=weakref_slot)
    class Wide:
        a: int
        b: int = 2
        c: int = 3
        d: int = 4
        e: int = 5
        f: int = 6
        g: list[int] = by.field(default_factory=list)
        h: int = 8

        def __post_init__(self) -> None:
            seen.append(type(self).__name__)

    class Wider(Wide):
        """Has a dictionary, which what it is made of has not."""

    kinds: tuple[Any, ...] = (Wide, Wider)
    for kind in kinds:
        for number in range(40):  # before and after its `__init__` is compiled
            made = kind(number, h=number)
            assert type(made) is kind
            assert (made.a, made.b, made.g, made.h) == (number, 2, [], number)
            for name in ("a", "h"):
                with pytest.raises(dataclasses.FrozenInstanceError):
                    setattr(made, name, 0)
            assert by.replace(made, h=1) == kind(number, h=1)
            assert not weakref_slot or weakref.ref(made)() is made
    assert set(seen) == {"Wide", "Wider"}
