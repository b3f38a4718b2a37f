"""Exceptions and warnings of the package."""


class Error(Exception):
    """An error of Muffle; the message is that of the library."""


class InputError(Error, ValueError):
    """An argument, a file or its content is invalid."""


class PromiseError(Error, ValueError):
    """A promise of privacy cannot be kept, or its budget is spent."""


class FaultError(Error, RuntimeError):
    """The program, the machine or another process failed."""


class Stopped(Error):
    """The run was asked to stop; it can be resumed."""


class PrivacyWarning(UserWarning):
    """A setting is valid, and its guarantee is weaker than it seems."""
