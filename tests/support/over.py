"""`over`: a parametrization within one test, for cases that are quick and show one property together."""

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

Test = Callable[..., None]


def over(names: str | tuple[str, ...], cases: Iterable[Any]) -> Callable[[Test], Test]:
    """As `pytest.mark.parametrize`, in one test, which ends with the first case that fails and names it.

    Args:
        names: The argument that differs between cases, or several.
        cases: Its values, or tuples of values. Fixtures are shared by all cases.
    """
    names, cases = (names,) if isinstance(names, str) else names, tuple(cases)
    assert cases

    def decorate(test: Test) -> Test:
        signature = inspect.signature(test)

        @functools.wraps(test)
        def run(*arguments: Any, **keywords: Any) -> None:
            for case in cases:
                values = dict(zip(names, case if len(names) > 1 else (case,), strict=True))
                try:
                    test(*arguments, **keywords, **values)
                except Exception as error:
                    error.add_note(f"with {', '.join(f'{name}={value!r}' for name, value in values.items())}")
                    raise

        remaining = [parameter for name, parameter in signature.parameters.items() if name not in names]
        run.__signature__ = signature.replace(parameters=remaining)  # type: ignore[attr-defined]
        return run

    return decorate
