"""The paper's numbers agree with each other, and with what its text says of them."""

import pytest

from sparsegroup_paper.frontier import L2S
from sparsegroup_paper.published import published, read_published
from sparsegroup_paper.statistics import count_significant

PAPER, ALL = published(), read_published()
NETWORKS = ("mlp", "opnn", "dcn")
DISAGREEING = {("dcn", 0.518): (0.8018, 0.8019), ("dcn", 0.062): (0.8017, 0.8018)}  # Table 2, Table 8: see the notes


def test_claims_follow_from_table_2():
    points = [point for network in NETWORKS for point in PAPER.sparsity[network]]
    cells = [(point.p_value, point.feature_rate, point.group_adam_auc - point.adam_auc) for point in points]
    everywhere = count_significant(cells, PAPER.claims.confidence)
    at_low_rate = count_significant(cells, PAPER.claims.confidence, below=PAPER.claims.low_feature_rate)
    assert (everywhere, everywhere.share) == ((9, 15), PAPER.claims.share_significant)
    assert (at_low_rate, at_low_rate.share) == ((7, 8), PAPER.claims.share_significant_at_low_rate)


@pytest.mark.parametrize("network", NETWORKS)
def test_table_2_falls_with_l21_and_table_8_is_behind_its_adam_but_for_known_exceptions(network):
    points = PAPER.sparsity[network]
    assert [point.l21 for point in points] == [1e-4, 5e-4, 1e-3, 5e-3, 1e-2]
    rates = [point.feature_rate for point in points]
    assert rates == sorted(rates, reverse=True)
    for pruned, point, whole in zip(PAPER.fine_tune[network], points, ALL["fine_tune"][network], strict=True):
        assert pruned.feature_rate == point.feature_rate
        assert set(pruned.aucs) == set(PAPER.setup.fine_tune_shares)
        best = pruned.aucs[whole["best_share"]]
        assert best == max(pruned.aucs.values())
        assert (point.adam_auc, best) == DISAGREEING.get((network, point.feature_rate), (best, best))


def test_the_grids_are_whole_and_pruning_has_as_many_trials_as_the_others():
    assert {rate for of in PAPER.learning_rates.values() for rate in of.values()} <= set(PAPER.setup.learning_rate_grid)
    assert [len(grid) for grid in PAPER.norm_grids.values()] == [10, 10]
    assert float(ALL["setup"]["default_l2"]) in L2S
    assert len(set(L2S)) == len(L2S) == len(PAPER.setup.fine_tune_shares)
