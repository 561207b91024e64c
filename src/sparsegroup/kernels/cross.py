"""The cross layers of DCN, as one function, which a `sparsegroup.kernels.cpu.tape.Tape` can record."""

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function


def cross_vectors(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return the last of the cross layers x_{l+1} = x_0 (x_l · w_l) + b_l + x_l (eq. 3 of DCN), `[batch, width]`.

    x_l = a_l x_0 + B_l with B_l = b_0 + … + b_{l-1}, a_0 = 1 and a_{l+1} = a_l (1 + x_0 · w_l) + B_l · w_l: x_0 is only
    needed in products with each w_l, and at the end.

    Args:
        x: x_0, `[batch, width]`.
        weight, bias: The w_l and b_l, `[layers, width]`, of at least one layer.
    """
    if has_torch_function((x, weight, bias)):
        found: Tensor = handle_torch_function(cross_vectors, (x, weight, bias), x, weight, bias)
        return found
    total = bias.cumsum(0)
    constants = (total[:-1] * weight[1:]).sum(1)
    products = (x @ weight.t()).unbind(1)
    scale = 1 + products[0]
    for layer in range(1, len(weight)):
        scale = scale + scale * products[layer] + constants[layer - 1]
    return torch.addcmul(total[-1], scale.unsqueeze(1), x)
