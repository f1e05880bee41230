"""A dataclass decorator for a quick start: `__init__` is compiled when first called.

The standard one compiles up to six methods of each class while its module is imported,
about 1 ms for a frozen class, and a run uses few of the classes that it imports.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Any

__all__ = ["dataclass"]

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(
        cls=None,
        /,
        *,
        frozen=False,
        slots=False,
        eq=True,
        repr=True,  # noqa: A002
        kw_only=False,
    ):
        """As `dataclasses.dataclass`, whose `fields`, `replace` and `asdict` work on
        the class.

        Not supported: `order`, `unsafe_hash`, `InitVar` and fields with `init=False`.
        """

        def decorate(cls: type) -> type:
            own = vars(cls)
            has_hash = own.get("__hash__") is not None
            # else a signature is computed for it
            cls.__doc__ = cls.__doc__ or cls.__name__
            made = dataclasses.dataclass(
                init=False, repr=False, eq=False, slots=slots, kw_only=kw_only
            )(cls)
            methods: dict[str, Any] = {}
            if repr:
                methods["__repr__"] = _repr
            if eq:
                compared = _make_key(made)
                methods["__eq__"] = _make_eq(compared)
                if not has_hash:
                    made.__hash__ = _make_hash(compared) if frozen else None
            if frozen:
                methods |= {
                    "__setattr__": _refuse_change,
                    "__delattr__": _refuse_change,
                }
                methods |= {"__getstate__": _get_state, "__setstate__": _set_state}
            for name, method in methods.items():
                if name not in own:
                    setattr(made, name, method)
            made.__init__ = _make_init(made, is_frozen=frozen)
            made.__signature__ = _Signature()
            return made

        return decorate if cls is None else decorate(cls)


def _make_init(cls: Any, *, is_frozen: bool) -> Callable[..., None]:
    def __init__(self: object, *args: object, **kwargs: object) -> None:  # noqa: N807
        cls.__init__ = _compile_init(cls, is_frozen=is_frozen)
        cls.__init__(self, *args, **kwargs)

    return __init__


def _compile_init(cls: Any, *, is_frozen: bool) -> Callable[..., None]:
    names: dict[str, Any] = {"_set": object.__setattr__, "_unset": dataclasses.MISSING}
    parameters, keywords, body = ["self"], list[str](), list[str]()
    for field in dataclasses.fields(cls):
        name = parameter = value = field.name
        if field.default is not dataclasses.MISSING:
            names[f"_default_{name}"] = field.default
            parameter += f"=_default_{name}"
        elif field.default_factory is not dataclasses.MISSING:
            names[f"_make_{name}"] = field.default_factory
            parameter += "=_unset"
            value = f"_make_{name}() if {name} is _unset else {name}"
        (keywords if field.kw_only else parameters).append(parameter)
        body.append(
            f"_set(self, {name!r}, {value})" if is_frozen else f"self.{name} = {value}"
        )
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    if keywords:
        parameters += ["*", *keywords]
    exec(
        f"def __init__({', '.join(parameters)}):\n  {'; '.join(body) or 'pass'}", names
    )
    init: Callable[..., None] = names["__init__"]
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    init.__annotations__ = {field.name: field.type for field in dataclasses.fields(cls)}
    return init


class _Signature:
    """For `help` and `inspect.signature`."""

    def __get__(self, _: object, cls: Any) -> inspect.Signature:
        init = inspect.signature(_compile_init(cls, is_frozen=False))
        return init.replace(parameters=list(init.parameters.values())[1:])


def _make_key(cls: Any) -> Callable[[object], object]:
    compared = [field.name for field in dataclasses.fields(cls) if field.compare]
    return attrgetter(*compared) if compared else lambda _: ()


def _make_eq(key: Callable[[object], object]) -> Callable[[object, object], bool]:
    def __eq__(self: object, other: object) -> bool:  # noqa: N807
        return key(self) == key(other) if type(self) is type(other) else NotImplemented

    return __eq__


def _make_hash(key: Callable[[object], object]) -> Callable[[object], int]:
    def __hash__(self: object) -> int:  # noqa: N807
        return hash(key(self))

    return __hash__


def _repr(self: Any) -> str:
    shown = (field.name for field in dataclasses.fields(self) if field.repr)
    values = ", ".join(f"{name}={getattr(self, name)!r}" for name in shown)
    return f"{type(self).__qualname__}({values})"


def _refuse_change(self: object, name: str, *_: object) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot change field {name!r}")


def _get_state(self: Any) -> list[object]:
    return [getattr(self, field.name) for field in dataclasses.fields(self)]


def _set_state(self: Any, state: list[object]) -> None:
    for field, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, field.name, value)
