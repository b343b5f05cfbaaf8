"""A property computed on first use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class lazy(Generic[T]):  # noqa: N801  (used as a decorator, like property)
    """As functools.cached_property without the lock of Python 3.11, which torch.compile cannot trace."""

    def __init__(self, function: Callable[[Any], T]) -> None:
        self.function, self.name, self.__doc__ = function, function.__name__, function.__doc__

    def __get__(self, instance: Any, owner: type) -> T:
        value = instance.__dict__[self.name] = self.function(instance)
        return value
