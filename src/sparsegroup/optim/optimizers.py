"""The named optimizers: each is its rule, and a constructor with torch's names, places and defaults.

The rule declares the valid values. A test compares the defaults of the constructors with those of the rules.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Unpack

from torch import Tensor
from torch.optim.optimizer import ParamsT

from sparsegroup.optim.arguments import Options
from sparsegroup.optim.optimizer import GroupOptimizer
from sparsegroup.rules import ADAGRAD, ADAM, AMSGRAD, FTRL, MOMENTUM, ROWWISE_ADAGRAD, SGD


class GroupSGD(GroupOptimizer):
    """SGD with step size lr / √t (Table 1) and sparse group lasso.

    With all λ = 0 it is `torch.optim.SGD` under `LambdaLR(lambda e: (e + 1) ** -0.5)`. For SGD with a constant
    learning rate take `GroupMomentum(momentum=0)`. It keeps no state but u: where λ is turned on after training
    without, a group feels it from its next non-zero gradient on.

    Args:
        params: See `GroupOptimizer`.
        lr: Learning rate α ≥ 0 at step 1.
        weight_decay: Added to the gradient as `weight_decay * x`; not with sparse gradients.
        **options: The regularizer's arguments, see `GroupOptimizer`.

    Examples:
        >>> import torch
        >>> from sparsegroup import GroupSGD
        >>> x = torch.nn.Parameter(torch.tensor([1.0]))
        >>> optimizer = GroupSGD([x], lr=0.5)
        >>> for _ in range(2):
        ...     x.grad = torch.ones(1)
        ...     optimizer.step()  # by lr / √t
        >>> round(x.item(), 4) == round(1 - 0.5 - 0.5 / 2**0.5, 4)
        True
    """

    rule = SGD

    def __init__(
        self, params: ParamsT, lr: float | Tensor = 1e-3, *, weight_decay: float = 0.0, **options: Unpack[Options]
    ) -> None:
        super().__init__(params, lr=lr, weight_decay=weight_decay, **options)


class GroupMomentum(GroupOptimizer):
    """SGD with momentum and sparse group lasso. `momentum=0` gives SGD with a constant learning rate.

    With all λ = 0 it is `torch.optim.SGD(momentum=…)` on dense gradients. On sparse gradients it is lazy, unlike
    torch's: the momentum of a row decays and moves the row only when a gradient holds that row.

    Args:
        params: See `GroupOptimizer`.
        lr: Learning rate α ≥ 0.
        momentum: γ ≥ 0.
        weight_decay: Added to the gradient as `weight_decay * x`; not with sparse gradients.
        nesterov: Nesterov's momentum, m_t = g_t + γ b_t; needs γ > 0.
        **options: The regularizer's arguments, see `GroupOptimizer`.

    Examples:
        >>> import torch
        >>> from sparsegroup import GroupMomentum
        >>> x = torch.nn.Parameter(torch.zeros(1))
        >>> optimizer = GroupMomentum([x], lr=1.0, momentum=0.5)
        >>> for _ in range(3):
        ...     x.grad = torch.ones(1)
        ...     optimizer.step()  # by 1, 1.5 and 1.75
        >>> x.item()
        -4.25
    """

    rule = MOMENTUM
    implied: ClassVar[Mapping[str, Any]] = {"dampening": 0.0}

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        momentum: float = 0.9,
        *,
        nesterov: bool = False,
        weight_decay: float = 0.0,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(params, lr=lr, momentum=momentum, nesterov=nesterov, weight_decay=weight_decay, **options)


class GroupAdagrad(GroupOptimizer):
    """Adagrad with sparse group lasso (Algorithm 3). With all λ = 0 it is `torch.optim.Adagrad`.

    With l21 = 0 and `initial_accumulator_value = eps = 0` it is FTRL-Proximal that keeps the start x₁, which is what
    embeddings need; `GroupFTRL` forgets it.

    Args:
        params: See `GroupOptimizer`.
        lr: Learning rate α ≥ 0.
        lr_decay: The learning rate of step t is α / (1 + (t - 1) lr_decay).
        weight_decay: Added to the gradient as `weight_decay * x`; not with sparse gradients.
        initial_accumulator_value: a₀ ≥ 0, where Σ g² starts.
        eps: ε ≥ 0, added to √(a₀ + Σ g²).
        **options: The regularizer's arguments, see `GroupOptimizer`.

    Examples:
        >>> import torch
        >>> from sparsegroup import GroupAdagrad
        >>> x = torch.nn.Parameter(torch.ones(2))
        >>> optimizer = GroupAdagrad([x], lr=0.25)
        >>> x.grad = torch.tensor([100.0, -0.01])
        >>> optimizer.step()  # the first step has the length lr for any gradient
        >>> x.tolist()
        [0.75, 1.25]
    """

    rule = ADAGRAD

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-2,
        lr_decay: float = 0.0,
        weight_decay: float = 0.0,
        initial_accumulator_value: float = 0.0,
        eps: float = 1e-10,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(
            params,
            lr=lr,
            lr_decay=lr_decay,
            weight_decay=weight_decay,
            initial_accumulator_value=initial_accumulator_value,
            eps=eps,
            **options,
        )


class GroupRowWiseAdagrad(GroupAdagrad):
    """Row-wise Adagrad with sparse group lasso: Adagrad with one accumulator per group, of the mean of g² in it.

    With all λ = 0 it is `torchrec.optim.RowWiseAdagrad` and FBGEMM's EXACT_ROWWISE_ADAGRAD. A `HashEmbedding` of
    float32 on the CPU keeps one float32 number a row of the accumulator, for any `state_dtype`, which is u's then;
    everywhere else it is stored for each element.

    The arguments are `GroupAdagrad`'s.

    Examples:
        >>> import torch
        >>> from sparsegroup import GroupRowWiseAdagrad
        >>> x = torch.nn.Parameter(torch.zeros(1, 2))
        >>> optimizer = GroupRowWiseAdagrad([x], lr=1.0)
        >>> x.grad = torch.tensor([[1.0, 7.0]])
        >>> optimizer.step()  # by g / √(‖g‖² / 2) = g / 5
        >>> [round(number, 4) for number in x[0].tolist()]
        [-0.2, -1.4]
    """

    rule = ROWWISE_ADAGRAD


class GroupAdam(GroupOptimizer):
    """Adam with sparse group lasso (Algorithm 2). With all λ = 0 it is `torch.optim.Adam`.

    On sparse gradients it is lazy and is `torch.optim.SparseAdam` except for ε: ours is Adam's, constant next to
    √(V / (1 - β2^t)), for dense and sparse gradients alike.

    Args:
        params: See `GroupOptimizer`.
        lr: Learning rate α ≥ 0.
        betas: (β1, β2) in [0, 1), the decay of the first and second moment.
        eps: ε ≥ 0. TensorFlow's ε̂ is ε √(1 - β2^t).
        weight_decay: Added to the gradient as `weight_decay * x`; not with sparse gradients.
        **options: The regularizer's arguments, see `GroupOptimizer`.

    Examples:
        >>> import torch
        >>> from sparsegroup import GroupAdam
        >>> table = torch.nn.Embedding(4, 2, sparse=True)
        >>> optimizer = GroupAdam(table.parameters(), lr=1e-2, l21=1e4)
        >>> table(torch.tensor([0, 2])).sum().backward()
        >>> optimizer.step()
        >>> (table.weight == 0).all(dim=1).tolist()
        [True, False, True, False]
    """

    rule = ADAM

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, **options)


class GroupAMSGrad(GroupAdam):
    """AMSGrad with sparse group lasso. With all λ = 0 it is `torch.optim.Adam(amsgrad=True)`.

    The arguments are `GroupAdam`'s.

    Examples:
        >>> import torch
        >>> from sparsegroup import GroupAMSGrad
        >>> x = torch.nn.Parameter(torch.zeros(1))
        >>> optimizer = GroupAMSGrad([x], lr=0.1, betas=(0.0, 0.5))
        >>> for gradient in (8.0, 0.0, 0.0):
        ...     x.grad = torch.full_like(x, gradient)
        ...     optimizer.step()
        >>> optimizer.state[x]["exp_avg_sq"].tolist(), optimizer.state[x]["max_exp_avg_sq"].tolist()
        ([8.0], [32.0])
    """

    rule = AMSGRAD
    implied: ClassVar[Mapping[str, Any]] = {"amsgrad": True}


class GroupFTRL(GroupOptimizer):
    """FTRL-Proximal with group lasso (McMahan et al., 2013; Ni et al., 2019), as TensorFlow's `Ftrl` has it.

    σ_t = (√(a₀ + Σ g²) + β) / α, and nothing of the start x₁ is charged: u₀ = σ₀ x₁. So it forgets most of a random
    initialization; for embeddings use `GroupAdagrad`. TensorFlow's `l2_regularization_strength` is `l2` here.
    With l21 = 0 it is TensorFlow's FTRL for `learning_rate_power=-0.5`, except that a group which never had a
    non-zero gradient is left alone.

    Args:
        params: See `GroupOptimizer`.
        lr: Learning rate α ≥ 0.
        beta: β ≥ 0, added to the root.
        initial_accumulator_value: a₀ ≥ 0, where Σ g² starts.
        weight_decay: Added to the gradient as `weight_decay * x`; not with sparse gradients.
        **options: The regularizer's arguments, see `GroupOptimizer`.

    Examples:
        >>> import torch
        >>> from sparsegroup import GroupFTRL
        >>> x = torch.nn.Parameter(torch.zeros(3))
        >>> optimizer = GroupFTRL([x], lr=1.0, l1=0.5, initial_accumulator_value=0.0)
        >>> x.grad = torch.tensor([0.4, 1.0, -4.0])
        >>> optimizer.step()  # gradients that sum up to less than l1 leave a weight at zero
        >>> x.abs().tolist(), x.sign().tolist()
        ([0.0, 0.5, 0.875], [0.0, -1.0, 1.0])
    """

    rule = FTRL

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor,
        beta: float = 0.0,
        initial_accumulator_value: float = 0.1,
        weight_decay: float = 0.0,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(
            params,
            lr=lr,
            beta=beta,
            initial_accumulator_value=initial_accumulator_value,
            weight_decay=weight_decay,
            **options,
        )
