"""A batch's forward and backward pass: by the network's own passes where it has them, else by autograd."""

from torch import Tensor

from sparsegroup.training.checks import backward, check_loss
from sparsegroup.training.piecewise_network import PiecewiseNetwork
from sparsegroup.training.ranks import GlobalBatch, RankGroup


def give_gradients(
    network: PiecewiseNetwork,
    embeddings: Tensor,
    numbers: Tensor | None,
    step: GlobalBatch,
    ranks: RankGroup,
    *,
    second_order: bool,
) -> tuple[Tensor, Tensor]:
    """Let all parameters have their gradients of a batch's loss; gives its logits `[n]` and the loss `[]`, detached.

    Where the network has passes of its own, autograd is left with what lies before it: the table.

    Args:
        network: The network.
        embeddings: `[n, fields, dim]`.
        numbers: `[n, numbers]`, or None.
        step: The batch.
        ranks: Those that share it.
        second_order: Whether second derivatives will be asked for.

    Raises:
        FloatingPointError: The loss is not finite; there are no gradients. On several ranks, whose losses differ, the
            sum of all has to be checked, see `RankGroup.add_up`.
    """
    batch = step.own.for_device(embeddings.device)
    parted = network.parted(embeddings, numbers)
    if parted is not None and parted.is_plain:
        logits, saved = parted.forward()
        loss, gradient = ranks.loss_and_gradient(logits, batch, step.samples)
        if ranks.is_alone:
            check_loss(loss)
        parted.give(parted.backward(saved, gradient))
        return logits, loss
    logits = network.whole(embeddings, numbers) if parted is None else parted.logits()
    loss = ranks.loss(logits, batch, step.samples)
    if ranks.is_alone:
        check_loss(loss)
    backward(loss, second_order=second_order)
    return logits.detach(), loss.detach()
