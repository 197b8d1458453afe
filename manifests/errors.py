"""What can be wrong with an object of the archive."""


class ArchiveError(Exception):
    """Root of the errors that reading the archive's objects raises."""


class UnsupportedFormatError(ArchiveError):
    """The object has a format that this release does not know: upgrade the package. Nothing is guessed."""


class CorruptObjectError(ArchiveError):
    """The object's bytes are not what was stored: restore the object, or delete what needs it."""
