"""A credential that expires and can be fetched anew."""

from __future__ import annotations

from collections.abc import Awaitable, Callable


def check_secret(what: str, secret: str) -> None:
    """Refuse what no header or query can carry, such as a line end from a file; the secret itself is not shown."""
    if any(character.isspace() or not character.isprintable() for character in secret):
        raise ValueError(f"{what} holds a space, a line end or a control character; strip it")


class Token:
    """A refreshable credential: `fetch` returns the token; it is called on first use and after a 401.

    However many callers meet the same 401, one refresh is in flight; each of them then repeats once.
    """

    __slots__ = ("fetch",)

    def __init__(self, fetch: Callable[[], str] | Callable[[], Awaitable[str]]) -> None:
        if not callable(fetch):
            raise TypeError(f"Token needs a function that returns the token, not {type(fetch).__name__}")
        self.fetch = fetch

    def __repr__(self) -> str:
        return f"Token({getattr(self.fetch, '__qualname__', type(self.fetch).__qualname__)})"


class TokenState:
    """The token in use and how often it was fetched."""

    __slots__ = ("generation", "value")

    def __init__(self) -> None:
        self.value: str | None = None
        self.generation = 0

    def outdated(self, generation: int) -> bool:
        """Whether a failure of that generation is old news: the token has been renewed since."""
        return generation != self.generation

    def renew(self, value: object) -> None:
        """Take the token that was fetched."""
        if not isinstance(value, str) or not value:
            raise TypeError(f"the token's fetch function must return a non-empty string, not {type(value).__name__}")
        check_secret("the token", value)
        self.value = value
        self.generation += 1
