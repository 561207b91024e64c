"""The pieces of a kernel's source that depend on how many states and scalars a rule has."""

from collections.abc import Sequence
from typing import Any

from sparsegroup.kernels.cpu import block, jit
from sparsegroup.kernels.cpu.memory import on_stack
from sparsegroup.rules import Rule


def scalar_names(rule: Rule) -> tuple[str, ...]:
    """The names of what `rule.scalars` gives, as `update` takes it."""
    code = rule.update.__code__
    names = code.co_varnames[: code.co_argcount]
    return names[1 + int(rule.has_second_input) + len(rule.state) :]


def adapters(rule: Rule, first_state: int) -> dict[str, Any]:
    """Functions of as many arguments as the rule has states and scalars: name → what `block` calls by it.

    Args:
        rule: The base optimizer.
        first_state: The number of the first state among the parts of a row: 2 with u, else 1.
    """
    states, scalars = range(len(rule.state)), len(scalar_names(rule))
    names = {"update": jit.inline(rule.update), "array_at": jit.array_at}
    arguments = ["g[i]", *(["hessian[i]"] if rule.has_second_input else [])]
    arguments += [f"state[{k}][i]" for k in states] + [f"scalars[{k}]" for k in range(scalars)]
    results = ", ".join(["m", "sigma", *(f"s{k}" for k in states)])
    stores = "".join(f"    state[{k}][i] = s{k}\n" for k in states)
    part = "array_at(base[t, {p}] + place, count, zero)"
    inside = "array_at(at[{p}], count, zero)"
    scratch = "array_at(address + {p} * between, count, zero)"

    def tuple_of(items: Sequence[str]) -> str:
        return "(" + "".join(f"{item}, " for item in items) + ")"

    u = first_state - 1
    hessian = "array_at(at[t, 1] + offset, count, zero)" if rule.has_second_input else "g"
    texts = {
        "update_at": f"def update_at(g, hessian, state, i, scalars):\n"
        f"    {results} = update({', '.join(arguments)})\n{stores}    return m, sigma\n",
        "unpack": f"def unpack(a, t):\n    return {tuple_of([f'a[t, {k}]' for k in range(scalars)])}\n",
        "parts_at": "def parts_at(base, t, place, count, zero):\n"
        f"    return {part.format(p=0)}, {part.format(p=u)}, "
        f"{tuple_of([part.format(p=first_state + k) for k in states])}\n",
        "parts_in": "def parts_in(at, count, zero):\n"
        f"    return {inside.format(p=0)}, {inside.format(p=u)}, "
        f"{tuple_of([inside.format(p=first_state + k) for k in states])}\n",
        "scratch_parts": "def scratch_parts(address, between, count, zero):\n"
        f"    return {scratch.format(p=0)}, {scratch.format(p=u)}, "
        f"{tuple_of([scratch.format(p=first_state + k) for k in states])}\n",
        "gradient_at": "def gradient_at(at, t, offset, count, zero):\n"
        f"    g = array_at(at[t, 0] + offset, count, zero)\n    return g, {hessian}\n",
        "is_initial": "def is_initial(state, initial, i):\n"
        f"    return {' and '.join(['True', *(f'state[{k}][i] == initial[{k}]' for k in states)])}\n",
        "parts_of": "def parts_of(state, start, count, zero):\n"
        f"    return {tuple_of([f'part(state[{k}], start, count, zero)' for k in states])}\n",
    }
    names["part"] = block.part
    memory = on_stack((first_state + len(rule.state)) * block.STRIDE * 8)
    return {name: jit.source(text, names) for name, text in texts.items()} | {"r_memory": memory}
