"""Raw logs: files of rows, in any format, read unchanged.

A kind of file is a module with a `RawFile`, imported here.
"""

from sparsegroup.data.raw import columnar, text  # noqa: F401, for their kinds of file
