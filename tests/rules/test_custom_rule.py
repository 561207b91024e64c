"""How to add an optimizer: one function, its scalars, a class of a few lines. RMSProp, from outside the package."""

import pytest
import torch

from optimizer_cases import parameter, refused, train
from over import over
from rmsprop import GroupRMSprop, scalars, update
from sparsegroup.rules import Hyperparameter, Rule, from_to, learning_rate


@over("weight_decay", [0.0, 0.1])
def test_without_regularizer_it_is_torchs(weight_decay):
    ours, theirs = parameter(4, 3), parameter(4, 3)
    train(GroupRMSprop([ours], weight_decay=weight_decay), 300)
    train(torch.optim.RMSprop([theirs], weight_decay=weight_decay), 300)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


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
