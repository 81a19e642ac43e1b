"""The version of lensview; a test holds it equal to pyproject.toml's and package.json's."""

VERSION = "0.1.0"
