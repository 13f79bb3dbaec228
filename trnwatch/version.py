"""The version of the package; the same as that of the service it reports to."""

VERSION = "0.10.0"
