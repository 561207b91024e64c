"""How to add an optimizer: one function, its scalars, a class of a few lines. RMSProp, from outside the package."""

import inspect

import numpy as np
import pytest
import torch

from optimizer_cases import assert_identical, lookup_loss, parameter, refused, train, train_lookup
from rmsprop import GroupRMSprop, scalars, update
from sparsegroup.rules import Hyperparameter, Rule, bind, from_to, learning_rate


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_without_regularizer_it_is_torchs(weight_decay):
    ours, theirs = parameter(4, 3), parameter(4, 3)
    train(GroupRMSprop([ours], weight_decay=weight_decay), 1000)
    train(torch.optim.RMSprop([theirs], weight_decay=weight_decay), 1000)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_it_takes_sparse_gradients():
    sparse, dense = parameter(5, 3), parameter(5, 3)
    train_lookup(GroupRMSprop([sparse], l21=0.01), [[4, 0, 1, 2, 3, 3]] * 5)
    optimizer = GroupRMSprop([dense], l21=0.01)
    for t in range(5):
        optimizer.zero_grad()
        lookup_loss(dense, [4, 0, 1, 2, 3, 3], t, sparse=False).backward()
        optimizer.step()
    torch.testing.assert_close(sparse, dense, rtol=1e-13, atol=1e-13)


def test_it_leaves_other_rows_alone():
    x = parameter(5, 3)
    before = x.detach().clone()
    train_lookup(GroupRMSprop([x], l21=0.01), [[1, 3]] * 3)
    assert_identical(x[[0, 2, 4]], before[[0, 2, 4]])
    assert (x[[1, 3]] != before[[1, 3]]).all()


def test_l21_makes_rows_zero_and_only_rows():
    x = parameter(8, 3)
    optimizer = GroupRMSprop([x], l21=0.5)
    pull = torch.tensor([1e-3] * 4 + [1.0] * 4, dtype=torch.float64)[:, None]
    for _ in range(300):
        optimizer.zero_grad()
        (pull * (x - 1).square() / 2).sum().backward()
        optimizer.step()
    assert (x == 0).all(dim=1).tolist() == [True] * 4 + [False] * 4
    assert (x[4:] != 0).all()


def test_its_state_goes_through_a_state_dict():
    x, y = parameter(4, 3), parameter(4, 3)
    optimizer, other = GroupRMSprop([x], l21=0.05), GroupRMSprop([y])
    train(optimizer, 3)
    assert optimizer.state[x].keys() == {"step", "square_avg", "u"}
    with torch.no_grad():
        y.copy_(x)
    other.load_state_dict(optimizer.state_dict())
    assert_identical(other.state[y], optimizer.state[x])


def test_a_torch_state_of_its_base_loads():
    x, y = parameter(4, 3), parameter(4, 3)
    reference, ours = torch.optim.RMSprop([x]), GroupRMSprop([y])
    train(reference, 3)
    with torch.no_grad():
        y.copy_(x)
    ours.load_state_dict(reference.state_dict())
    train(ours, 3, start=3)
    train(reference, 3, start=3)
    torch.testing.assert_close(y, x, rtol=1e-13, atol=1e-13)
    other = torch.optim.Adam([parameter(4, 3)])
    train(other, 1)
    with refused(ours, ValueError, "exp_avg.*'rmsprop'"):
        ours.load_state_dict(other.state_dict())


def test_its_signature_shows_the_shared_arguments():
    arguments = inspect.signature(GroupRMSprop).parameters
    assert list(arguments)[:5] == ["params", "lr", "alpha", "eps", "weight_decay"]
    assert arguments["l21"].default == 0.0


def test_a_bad_argument_is_refused_by_the_rules_declaration():
    with pytest.raises(ValueError, match=r"l21 must be >= 0, got -1 \(param group 0\)"):
        GroupRMSprop([parameter(2)], l21=-1)
    with pytest.raises(ValueError, match=r"alpha must be in \[0, 1\), got 5 \(param group 0\)"):
        GroupRMSprop([parameter(2)], alpha=5)
    optimizer = GroupRMSprop([parameter(2)])
    with refused(optimizer, ValueError, r"alpha must be in \[0, 1\), got 1 \(param group 1\)"):
        optimizer.add_param_group({"params": [parameter(2)], "alpha": 1})
    with pytest.raises(TypeError, match="GroupRMSprop got an unexpected argument 'alhpa'"):
        GroupRMSprop([parameter(2)], alhpa=0.5)


def test_a_rule_must_declare_what_it_reads():
    with pytest.raises(ValueError, match="the rule 'rmsprop' reads 'alpha', which it does not declare"):
        Rule("rmsprop", scalars, update, {"square_avg": 0.0}, [learning_rate(1e-2)])
    with pytest.raises(ValueError, match="the rule 'rmsprop' reads 'start', which it does not declare"):
        Rule("rmsprop", lambda lr: (lr,), update, {"square_avg": "start"}, [learning_rate(1e-2)])
    with pytest.raises(ValueError, match="the rule 'rmsprop' declares a hyperparameter twice"):
        Rule("rmsprop", lambda lr: (lr,), update, {}, [learning_rate(1e-2), learning_rate(0.1)])
    with pytest.raises(ValueError, match=r"alpha must be in \[0, 1\), got 1 \(its default\)"):
        Hyperparameter("alpha", 1, from_to(0, 1))


def test_its_rule_runs_on_numpy():
    g, square_avg = np.array([0.5, -2.0]), np.array([0.0, 1.0])
    m, sigma, after = bind(update, np)(g, square_avg, *scalars(0.1, 0.9, 1e-8))
    np.testing.assert_allclose(after, [0.025, 1.3], rtol=1e-15)
    np.testing.assert_allclose(sigma, (np.sqrt(after) + 1e-8) * 10, rtol=1e-15)
    assert m is g
