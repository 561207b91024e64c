"""What an export is to hold, and what it is tested on."""

from dataclasses import dataclass

from sparsegroup.data.schema import LogSchema
from sparsegroup.serving.acceptance import TestRows
from sparsegroup.serving.onnx import require_onnx


@dataclass(frozen=True)
class ExportRequest:
    """What to write beside embeddings and network, and what to test it on.

    Attributes:
        onnx: `model.onnx`.
        program: `model.pt2`.
        test: None tests on made up rows; then no AUC is recorded.
        threads: That share onnxruntime's work in the test.
    """

    onnx: bool = False
    program: bool = False
    test: TestRows | None = None
    threads: int = 1

    def check(self, columns: LogSchema) -> None:
        """Whether this can be had of a model with such columns.

        Raises:
            ExportError: ONNX's packages are missing.
            ClickLogError: The test log has other columns.
        """
        if self.onnx:
            require_onnx()
        if self.test is not None:
            columns.check_fits(self.test.log.schema, self.test.log.name)
