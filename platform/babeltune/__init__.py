"""babeltune: sweep the published ways to align a multilingual sentence encoder with a teacher."""

__version__ = "0.1.0"
