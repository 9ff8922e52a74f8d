"""Variables of a module: their initial values, also addresses, at the beginning of every launch."""

from __future__ import annotations

import pytest
import torch

from fagen import emulate

PTX = """\
.version 8.7
.target sm_80
.address_size 64
.global .align 4 .u32 table[3] = {5, 6, 7};
.const .align 8 .f32 factors[2] = {0f40000000, 0f40400000};
.global .align 8 .u64 where[2] = {generic(table)+4, table};
.global .align 4 .u32 count;
.entry k(.param .u64 out)
{
.reg .b64 %d<4>; .reg .b32 %r<4>; .reg .f32 %f<3>;
ld.param.u64 %d0, [out];
ld.global.u64 %d1, [where];
ld.u32 %r0, [%d1];
st.global.u32 [%d0], %r0;
ld.global.u64 %d1, [where+8];
ld.global.u32 %r0, [%d1+8];
st.global.u32 [%d0+4], %r0;
ld.const.f32 %f0, [factors+4];
cvt.rzi.u32.f32 %r0, %f0;
st.global.u32 [%d0+8], %r0;
atom.global.add.u32 %r0, [count], 1;
st.global.u32 [%d0+12], %r0;
ret;
}
.entry bad(.param .u64 out)
{
.reg .b64 %d<2>;
mov.u64 %d0, factors;
cvta.const.u64 %d0, %d0;
st.u32 [%d0], 1;
ret;
}
"""


def test_initial_values() -> None:
    for _ in range(2):  # a launch does not see what an earlier one left
        out = torch.zeros(4, dtype=torch.int32)
        emulate.launch(PTX, "k", 1, 1, [out])
        assert out.tolist() == [6, 7, 3, 0]


def test_constants_are_read_only() -> None:
    with pytest.raises(emulate.Fault, match="a store into factors, which is read only") as caught:
        emulate.launch(PTX, "bad", 1, 1, [torch.zeros(4)])
    assert caught.value.kind == "read only"


def test_the_address_of_a_function_is_refused() -> None:
    text = PTX.replace("generic(table)+4", "k")
    with pytest.raises(emulate.EmulationError, match="PTX line 6: where holds the address of k: this is not built"):
        emulate.launch(text, "k", 1, 1, [torch.zeros(4)])
