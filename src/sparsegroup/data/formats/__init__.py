"""The formats that raw logs come in.

A format is a module with a `KnownFormat`, and an entry here; one that the command line asks for by name is in
`sparsegroup.names.DatasetName`, too. A format of another package appends itself to `FORMATS`.
"""

from sparsegroup.data.formats.avazu import AVAZU
from sparsegroup.data.formats.criteo import CRITEO
from sparsegroup.data.formats.ipinyou import IPINYOU
from sparsegroup.data.formats.svm import SVM
from sparsegroup.data.schema import KnownFormat

FORMATS: list[KnownFormat] = [CRITEO, SVM, AVAZU, IPINYOU]
"""Formats that a log's beginning tells, in the order in which they are tried."""
