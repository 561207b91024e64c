"""Carrying out a planned step: tensors by the backends that take them, stored rows by their store."""

from collections.abc import Mapping, Sequence

from torch import Tensor

from sparsegroup.kernels.backends import backends_of
from sparsegroup.kernels.step import Backend, Execution, StepRequest, StepScalars, TensorStep, compute_dtype
from sparsegroup.optim.group_step import GroupStep, advance_steps
from sparsegroup.optim.local_shard import local_entry
from sparsegroup.optim.places import Place, State
from sparsegroup.optim.plans import ParameterPlan, TensorPlan
from sparsegroup.optim.stored import KEYS, RowStep
from sparsegroup.rules import Rule


class StepExecutor:
    """Carries out the steps of one optimizer.

    Args:
        rule: The optimizer's rule.

    Attributes:
        places: By the `id` of a parameter, where it and its state lay in the step before.
    """

    def __init__(self, rule: Rule) -> None:
        self._backends = backends_of(rule)
        self.places: dict[int, Place] = {}
        self._executions: dict[int, Execution] = {}
        self._stepped: dict[int, list[int]] = {}

    def check(self) -> None:
        """Raise what a device has reported of the steps before, if it has come by now.

        Raises:
            IndexError: A sparse gradient had rows that its parameter has not.
        """
        for backend in self._backends:
            backend.check()

    def note_parameters(self, number: int, parameters: list[int]) -> None:
        """Forget all places if param group `number` has other parameters, by `id`, than before: some may be gone."""
        if self._stepped.get(number, parameters) != parameters:
            self.places.clear()
        self._stepped[number] = parameters

    def carry_out(self, step: GroupStep, plans: Sequence[ParameterPlan], states: Mapping[Tensor, State]) -> None:
        """The step of one param group. `states[parameter]` is empty before a parameter's first."""
        batch = StepBatch(self, step, states)
        for plan in plans:
            plan.join(batch)
        batch.run()

    def execution(self, step: GroupStep) -> Execution:
        """How the param group wants to be stepped: the same object as long as nothing differs."""
        known = self._executions.get(step.number)
        if known is None or not known.is_same(step.execution):
            known = self._executions[step.number] = step.execution
        return known

    def new_place(self, step: GroupStep, execution: Execution, parameter: Tensor, state: State) -> Place:
        """Where the parameter and its state lie; what the state lacks is added."""
        step.prepare(parameter, state)
        place = Place(parameter, state, tuple(step.rule.state), execution, self._backends)
        self.places[id(parameter)] = place
        return place


class StepBatch:
    """The tensors of one param group's step, until they are stepped together.

    Args:
        executor: Knows where they lie.
        step: The step.
        states: See `StepExecutor.carry_out`.
    """

    def __init__(self, executor: StepExecutor, step: GroupStep, states: Mapping[Tensor, State]) -> None:
        self._executor = executor
        self._step = step
        self._states = states
        self._execution = executor.execution(step)
        self._known = executor.places
        self._plans: list[TensorPlan] = []
        self._places: list[Place] = []

    def add(self, plan: TensorPlan, state: State | None = None) -> None:
        """Have a tensor stepped when the batch is run; with the optimizer's state of it, unless another is given."""
        self._plans.append(plan)
        parameter = plan.parameter
        state = self._states[parameter] if state is None else state
        place = self._known.get(id(parameter))  # a tensor's own hash takes as long as all the rest
        if place is None or not place.holds(parameter, state, self._execution, self._step.wants_u):
            place = self._executor.new_place(self._step, self._execution, parameter, state)
        self._places.append(place)

    def local_state(self, parameter: Tensor) -> State:
        """What lies on this rank of the state of a parameter that is spread over ranks; what it lacks is added."""
        state = self._states[parameter]
        self._step.prepare(parameter, state)
        return local_entry(state)

    def row_step(self, parameter: Tensor) -> RowStep:
        """Count a step of a parameter in a store; gives what the store needs for it."""
        step, state = self._step, self._states[parameter]
        step.prepare_in_rows(parameter, state)
        state["step"] += 1
        numbers = step.numbers(float(state["step"]))
        dtype = step.group["state_dtype"]
        return RowStep(step.rule, state[KEYS], step.initial, dtype, step.wants_u, numbers, step.settings)

    def run(self) -> None:
        """Step the tensors, each by the first backend that takes it."""
        requests: dict[Backend, list[TensorStep]] = {}
        for plan, place, numbers in zip(self._plans, self._places, self._count_steps(), strict=True):
            slot = place.slot
            if slot.is_empty:
                continue
            tensor = TensorStep(slot, numbers, plan.gradient, plan.hessian, plan.rows, plan.repeats, plan.unchecked)
            requests.setdefault(place.backend(plan.rows is not None), []).append(tensor)
        for backend, tensors in requests.items():
            backend.step(StepRequest(self._step.number, self._step.settings, tensors))

    def _count_steps(self) -> list[StepScalars]:
        step, places = self._step, self._places
        if not step.execution.capturable:
            counts = [place.count_step() for place in places]
            numbers = {t: step.numbers(t) for t in set(counts)}
            return [numbers[t] for t in counts]
        dtypes = [compute_dtype(place.slot.dtype) for place in places]
        return advance_steps(step, [place.step for place in places], dtypes)
