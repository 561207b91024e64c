import torch


def pytest_configure() -> None:
    # Tensors this small are slower on several threads, and sums must not depend on how many cores there are.
    torch.set_num_threads(1)
