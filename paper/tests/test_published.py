import pytest

from sparsegroup_paper.published import published
from sparsegroup_paper.statistics import share_significant

PAPER = published()
NETWORKS = ("mlp", "opnn", "dcn")
DISAGREEING = {("dcn", 0.518): (0.8018, 0.8019), ("dcn", 0.062): (0.8017, 0.8018)}  # Table 2, Table 8: see the notes


@pytest.mark.parametrize("name", ["networks", "sparsity", "best_auc", "learning_rates", "lambdas", "fine_tune"])
def test_every_network_is_there(name):
    assert set(getattr(PAPER, name)) == set(NETWORKS)


def test_tables_2_to_9_have_captions():
    assert [table.number for table in PAPER.tables.values()] == list(range(2, 10))


def test_claims_follow_from_table_2():
    points = [point for network in NETWORKS for point in PAPER.sparsity[network]]
    arguments = (
        [point.p_value for point in points],
        [point.feature_rate for point in points],
        [point.group_adam_auc - point.adam_auc for point in points],
        PAPER.claims.confidence,
    )
    everywhere = share_significant(*arguments)
    at_low_rate = share_significant(*arguments, below=PAPER.claims.low_feature_rate)
    assert (everywhere, everywhere.share) == ((9, 15), PAPER.claims.share_significant)
    assert (at_low_rate, at_low_rate.share) == ((7, 8), PAPER.claims.share_significant_at_low_rate)


@pytest.mark.parametrize("network", NETWORKS)
def test_feature_rates_fall_as_l21_rises(network):
    points = PAPER.sparsity[network]
    assert [point.l21 for point in points] == [1e-4, 5e-4, 1e-3, 5e-3, 1e-2]
    rates = [point.feature_rate for point in points]
    assert rates == sorted(rates, reverse=True)


@pytest.mark.parametrize("network", NETWORKS)
def test_table_8_is_behind_adam_in_table_2_but_for_known_exceptions(network):
    for pruned, point in zip(PAPER.fine_tune[network], PAPER.sparsity[network], strict=True):
        assert pruned.feature_rate == point.feature_rate
        assert set(pruned.aucs) == set(PAPER.setup.fine_tune_shares)
        assert pruned.best_auc == max(pruned.aucs.values())
        expected = DISAGREEING.get((network, point.feature_rate), (pruned.best_auc, pruned.best_auc))
        assert (point.adam_auc, pruned.best_auc) == expected


def test_exceptions_are_noted():
    for (network, rate), (in_table_2, in_table_8) in DISAGREEING.items():
        parts = (network.upper(), str(rate), str(in_table_2), str(in_table_8))
        assert any(all(part in note for part in parts) for note in PAPER.notes)


def test_table_4_at_the_dimension_of_dcn_is_table_3():
    point = next(point for point in PAPER.embedding_dim if point.dimension == PAPER.networks["dcn"].embedding_dim)
    best = PAPER.best_auc["dcn"]["adam"]
    assert (point.feature_rate, point.auc) == (best.group_feature_rate, best.group_auc)


def test_settings_come_from_the_grids():
    for network in NETWORKS:
        assert set(PAPER.learning_rates[network].values()) <= set(PAPER.setup.learning_rate_grid)
        assert {lambdas.l2 for lambdas in PAPER.lambdas[network].values()} == {PAPER.setup.default_l2}
    assert {point.l21 for point in PAPER.sparsity["dcn"]} <= set(PAPER.norm_grids.s)
    for grid in (PAPER.norm_grids.s, PAPER.norm_grids.s_tilde):
        assert len(grid) == 10
        assert list(grid) == sorted(grid)


def test_it_is_read_once():
    assert published() is published()
