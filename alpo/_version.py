"""The version of ALPO, for whatever must tell it without importing the library.

A file of its own: whatever tells the version loads nothing else.
"""

__version__ = "0.2.0"
