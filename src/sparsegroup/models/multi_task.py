"""Networks for several tasks whose layers are shared in part: MMoE, and PLE."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sparsegroup.models.layers import Network, by_row, hidden_layers


def mixed(gate: nn.Module, x: Tensor, experts: Tensor) -> Tensor:
    """Σ_i softmax(gate(x))_i · expert i, `[batch, width]`, of experts `[batch, n, width]`."""
    shares: Tensor = gate(x).softmax(1)
    return torch.einsum("bn,bnw->bw", shares, experts)


class TaskNetwork(Network):
    """A network that ends with a tower for each output: hidden layers, and a logit."""

    def __init__(self, fields: int, dim: int, numbers: int, width: int, tower: Sequence[int], outputs: int) -> None:
        super().__init__(fields, dim, numbers)
        self.towers = nn.ModuleList(
            nn.Sequential(*hidden_layers(width, tower), nn.Linear(tower[-1] if tower else width, 1, bias=False))
            for _ in range(outputs)
        )
        self.bias = nn.Parameter(torch.zeros(outputs))

    @property
    def logit_bias(self) -> nn.Parameter:
        """See `Network.logit_bias`."""
        return self.bias

    def logits(self, last: Sequence[Tensor]) -> Tensor:  # type: ignore[override]
        """Logits of what each tower takes, `[batch, width]` each."""
        found = [tower(x) for tower, x in zip(self.towers, last, strict=True)]
        return by_row(torch.cat(found, dim=1) + self.bias)


class MMoE(TaskNetwork):
    """Multi-gate mixture of experts (Ma et al., KDD 2018): y_k = h_k(Σ_i g_k(x)_i f_i(x)), where g_k = softmax(W_k x).

    Args:
        fields: Number of categorical fields.
        dim: Embedding dimension.
        numbers: Number of numeric features.
        hidden: Sizes of the layers of each expert f_i.
        experts: Number of experts.
        tower: Sizes of the hidden layers of each task's tower h_k.
        dropout: After each layer of an expert.
        outputs: Number of tasks.
    """

    default_dim = 16

    def __init__(
        self,
        fields: int,
        dim: int = default_dim,
        numbers: int = 0,
        hidden: Sequence[int] = (64, 32),
        experts: int = 4,
        tower: Sequence[int] = (16,),
        dropout: float = 0.0,
        outputs: int = 1,
    ) -> None:
        width = fields * dim + numbers
        super().__init__(fields, dim, numbers, hidden[-1] if hidden else width, tower, outputs)
        self.experts = nn.ModuleList(hidden_layers(width, hidden, dropout) for _ in range(experts))
        self.gates = nn.ModuleList(nn.Linear(width, experts, bias=False) for _ in range(outputs))

    def forward(self, embeddings: Tensor, numbers: Tensor | None = None) -> Tensor:
        """Logits `[batch]`, or `[batch, outputs]`, of embeddings `[batch, fields, dim]`, numbers `[batch, numbers]`."""
        x = self.flatten(embeddings, numbers)
        experts = torch.stack([expert(x) for expert in self.experts], dim=1)
        return self.logits([mixed(gate, x, experts) for gate in self.gates])


class Extraction(nn.Module):
    """A level of PLE: experts of each task and shared ones, and a gate for each task, and for all if it is `shared`."""

    def __init__(
        self, width: int, hidden: Sequence[int], experts: int, tasks: int, dropout: float, *, shared: bool
    ) -> None:
        super().__init__()
        self.experts = nn.ModuleList(  # the last ones are shared
            nn.ModuleList(hidden_layers(width, hidden, dropout) for _ in range(experts)) for _ in range(tasks + 1)
        )
        self.gates = nn.ModuleList(nn.Linear(width, 2 * experts, bias=False) for _ in range(tasks))
        if shared:
            self.gates.append(nn.Linear(width, (tasks + 1) * experts, bias=False))

    def forward(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """What the gates make of the experts, `[batch, width]` each: the tasks' and, last, the shared one's.

        Args:
            inputs: As many, in the same order.
        """
        found = []
        for experts, x in zip(self.experts, inputs, strict=True):
            assert isinstance(experts, nn.ModuleList)
            found.append(torch.stack([expert(x) for expert in experts], dim=1))
        tasks = len(found) - 1
        seen = [torch.cat([found[task], found[-1]], dim=1) for task in range(tasks)]
        if len(self.gates) > tasks:
            seen.append(torch.cat(found, dim=1))
        return [mixed(gate, x, experts) for gate, x, experts in zip(self.gates, inputs, seen, strict=False)]


class PLE(TaskNetwork):
    """Progressive layered extraction (Tang et al., RecSys 2020): experts of each task and shared ones; one level: CGC.

    A task's gate mixes its own and the shared experts (eq. 4 to 6); below the last level another gate mixes all of
    them for the shared experts above (eq. 7 and 8).

    Args:
        fields: Number of categorical fields.
        dim: Embedding dimension.
        numbers: Number of numeric features.
        hidden: Sizes of the layers of each expert.
        experts: Number of experts of each task, and of shared ones, in each level.
        levels: Number of levels.
        tower: Sizes of the hidden layers of each task's tower.
        dropout: After each layer of an expert.
        outputs: Number of tasks.

    Raises:
        ValueError: `levels` < 1.
    """

    default_dim = 16

    def __init__(
        self,
        fields: int,
        dim: int = default_dim,
        numbers: int = 0,
        hidden: Sequence[int] = (64, 32),
        experts: int = 2,
        levels: int = 1,
        tower: Sequence[int] = (16,),
        dropout: float = 0.0,
        outputs: int = 1,
    ) -> None:
        if levels < 1:
            raise ValueError(f"levels must be >= 1, got {levels}")
        width = fields * dim + numbers
        last = hidden[-1] if hidden else width
        super().__init__(fields, dim, numbers, last, tower, outputs)
        self.levels = nn.ModuleList(
            Extraction(last if level else width, hidden, experts, outputs, dropout, shared=level < levels - 1)
            for level in range(levels)
        )

    def forward(self, embeddings: Tensor, numbers: Tensor | None = None) -> Tensor:
        """Logits `[batch]`, or `[batch, outputs]`, of embeddings `[batch, fields, dim]`, numbers `[batch, numbers]`."""
        inputs = [self.flatten(embeddings, numbers)] * (len(self.towers) + 1)
        for level in self.levels:
            inputs = level(inputs)
        return self.logits(inputs)
