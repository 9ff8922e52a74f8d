"""What a published module carries with it: the standard library and torch are all it needs.

`fagen build` copies this package into ``generated/<name>/runtime``, so nothing here may import the rest of fagen.
"""
