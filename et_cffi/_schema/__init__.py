"""Accessors of the developer tools' files, made from ExecuTorch's schemas by tools/generate_schema.py."""
