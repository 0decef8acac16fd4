"""The version of ALPO, for whatever must tell it without importing the library."""

__version__ = "0.2.0"
