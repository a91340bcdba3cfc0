"""redrive: the failure-handling runtime for Python data pipelines."""

__version__ = "0.1.0"
