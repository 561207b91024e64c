"""The experiments of Yue et al. (2021) on any click log: runs, statistics and reports, a module per experiment."""
