"""Logits of rows that do not depend on which other rows are asked for beside them."""

from copy import deepcopy

import numpy as np
import numpy.typing as npt
import torch

from sparsegroup.data.log import Log
from sparsegroup.table import FieldTables
from sparsegroup.training.click_model import ClickModel
from sparsegroup.training.evaluation import EVALUATED
from sparsegroup.training.lookup_model import keys_to_look_up, logits_of


@torch.no_grad()
def row_logits(model: ClickModel, log: Log) -> npt.NDArray[np.float64]:
    """Logits `[n]` of all rows of a log, by the network in float64.

    In float32 a row's place in its batch changes the order of sums, and the last bits with it.
    """
    network = deepcopy(model.network).double().eval()
    model.embedding.eval()
    logits = np.empty(len(log))
    first = 0
    for batch in log.batches(0, len(log), EVALUATED):
        keys, embedding = keys_to_look_up(batch.keys, batch.bags), model.embedding
        several = isinstance(embedding, FieldTables)
        vectors = embedding(keys, torch.float64) if several else embedding(keys).double()
        part = logits_of(network, vectors, batch.keys, batch.numbers.double(), batch.bags)
        logits[first : first + len(batch)] = part.cpu().numpy()
        first += len(batch)
    return logits
