"""Elements of matrices: their numbers in elements.h, and how many bits they have in shared memory and registers."""

ELEMENTS = {
    "f16": 0, "bf16": 1, "tf32": 2, "f32": 3, "f64": 4, "s8": 5, "u8": 6, "s4": 7, "u4": 8, "b1": 9, "e4m3": 10,
    "e5m2": 11, "s32": 12,
}  # fmt: skip
BITS = {
    "f16": 16, "bf16": 16, "tf32": 32, "f32": 32, "f64": 64, "s8": 8, "u8": 8, "s4": 4, "u4": 4, "b1": 1, "e4m3": 8,
    "e5m2": 8,
}  # fmt: skip
