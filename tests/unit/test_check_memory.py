"""The memory that the check lays its tensors out in."""

import subprocess
import sys

import pytest
import torch

from fagen.runtime.check.memory import PLACES, place, poisoned_memory


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32, torch.bool])
@pytest.mark.parametrize("shape", [(2, 5, 3, 8), (4,), (), (2, 0, 3, 8)])
def test_a_placed_tensor_has_the_values_it_was_given(where, dtype, shape):
    values = torch.randint(0, 2, shape).to(dtype)
    guarded = place(values, where)
    assert torch.equal(guarded.tensor, values)
    assert not guarded.changed()


@pytest.mark.parametrize("where", [where for where in PLACES if where != "broadcast"])
def test_a_write_inside_changes_and_does_not_spill(where):
    guarded = place(torch.zeros(2, 5, 3, 8), where)
    guarded.tensor.fill_(1.0)
    assert guarded.changed()
    assert not guarded.spilled()


@pytest.mark.parametrize("where", ["offset", "gaps", "slice"])
def test_a_write_one_element_too_far_spills(where):
    guarded = place(torch.zeros(2, 5, 3, 8), where)
    view = guarded.tensor
    torch.as_strided(guarded.base, (1,), (1,), view.storage_offset() + view.stride(-1) * 7 + 1).fill_(0.0)
    guarded.base.flatten()[-1] = 0.0
    assert guarded.spilled()


def test_broadcast_has_stride_zero_where_the_values_are_equal():
    values = torch.randn(2, 5, 1, 8).expand(2, 5, 3, 8)
    assert place(values, "broadcast").tensor.stride()[2] == 0


def test_reading_past_the_fence_kills_the_process():
    program = (
        "import ctypes, torch\n"
        "from fagen.runtime.check.memory import place\n"
        "t = place(torch.zeros(3), 'fence').tensor\n"
        "print(ctypes.c_float.from_address(t.data_ptr() + 8).value, flush=True)\n"
        "print(ctypes.c_float.from_address(t.data_ptr() + 12).value)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "0.0\n"
    assert done.returncode < 0


def test_new_memory_is_nan_only_while_poisoned():
    with poisoned_memory():
        assert torch.empty(1000).isnan().all()
        assert torch.empty_like(torch.zeros(7, dtype=torch.bfloat16)).isnan().all()
    assert not torch.are_deterministic_algorithms_enabled()
