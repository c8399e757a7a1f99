"""The vocabulary that everything else is spelled in."""
from __future__ import annotations


class InputError(ValueError):
    """Something the user gave is wrong.

    The message is one line that names the field, the value and what is allowed. Raised before any process is
    started; commands print it and leave with exit code 2.
    """
