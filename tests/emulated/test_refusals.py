"""What the emulator does not know is refused by name and line, before anything runs."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
import torch

from fagen import emulate
from fagen.emulate.ptx.parse import parse
from fagen.emulate.translate.program import translate

HEAD = ".version 8.7\n.target sm_90a\n.address_size 64\n"
KERNEL = (
    HEAD + ".visible .entry k(.param .u64 p)\n{\n.reg .b32 %r<4>; .reg .b64 %d<4>; .reg .pred %q; .reg .f32 %f<5>;\n"
)


def refusal(ptx: str, kernel: str = "k", **more: object) -> str:
    with pytest.raises(emulate.EmulationError) as caught:
        emulate.launch(ptx, kernel, 1, 1, [torch.zeros(1)], **more)  # type: ignore[arg-type]
    return str(caught.value)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("tex.1d.v4.f32.s32 {%f1, %f2, %f3, %f4}, [%d1, {%r1}];", "tex.1d.v4.f32.s32: this instruction is not built"),
        ("tcgen05.wait::ld.sync.aligned;", "tcgen05.wait::ld.sync.aligned: this instruction is not built"),
        ("add.rn.rt.f32 %f1, %f2, %f3;", "add.rn.rt.f32: .rt is not built"),
        ("shfl.up.b32 %r1, %r2, 1, 0;", "shfl.up.b32: shfl without .sync is not built"),
        (
            "cp.async.bulk.tensor.1d.global.shared::cta.im2col_no_offs.bulk_group [%d1, {%r1}], [%r2];",
            ".im2col_no_offs",
        ),
        ("wgmma.mma_async.sp.sync.aligned.m64n8k32.f32.f16.f16 {%f1}, %d1, %d2, %r1;", ".sp is not built"),
        ("barrier.cluster.sync;", "barrier.cluster.sync: expected one of .arrive, .wait"),
        ("mov.u32 %r1, %pm0;", "%pm0 is neither declared nor a special register that is built"),
        ("mov.u32 %r1, %r9;", "%r9 is neither declared"),
        ("mov.u32 %r9, %r1;", "no register %r9 is declared"),
        ("cvt.rq.f16.f32 %r1, %f1;", ".rq is not built"),
        ("ld.global.v2.b32 %r1, [%d1];", "expected 2 items"),
        ("mov.u64 %d1, nowhere;", "nowhere"),
        ("bra nowhere;", "bra: there is no label nowhere"),
    ],
)
def test_an_instruction_is_refused_by_name_and_line(line: str, why: str) -> None:
    message = refusal(f"{KERNEL}{line}\nret;\n}}\n")
    assert message.startswith("PTX line 7: ")
    assert why in message
    assert message.endswith(f": {line}")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (HEAD + ".entry k()\n{\nmov.u32 ]\n}", "PTX line 6: expected a name, found `]`: mov.u32 ]"),
        (HEAD + ".entry k()\n{\n ret", "PTX line 6: "),
        (HEAD + "§", "PTX line 4: unexpected '§'"),
        (HEAD + ".weird .b8 x;", "PTX line 4: unexpected `.weird`"),
        (
            HEAD + ".func f()\n{\ncall f;\nret;\n}\n.entry k(.param .u64 p)\n{\ncall f;\nret;\n}",
            "PTX line 6: call f;: recursion is not built",
        ),
        (
            HEAD + ".func (.param .b32 r) f(.param .b32 x);\n.entry k(.param .u64 p)\n{\ncall f;\nret;\n}",
            "PTX line 7: call f;: f has no body here",
        ),
        (HEAD + ".entry k(.param .u64 p)\n{\n.reg .b64 %d;\ncall (_), %d, (_);\n}", "indirect calls are not built"),
    ],
)  # fmt: skip
def test_a_text_is_refused_by_line(text: str, why: str) -> None:
    assert why in refusal(text)


def test_a_kernel_that_is_not_there() -> None:
    message = refusal(f"{KERNEL}ret;\n}}\n.entry other()\n{{\nret;\n}}\n", "third")
    assert message == ("kernel 'third': expected one of the entries, or a part of one's name; there are k, other")


@pytest.mark.parametrize(
    ("args", "why"),
    [
        ([], "k takes 1 arguments, found 0"),
        (["x"], "argument 0 of k: expected a tensor, a number or bytes, found str"),
        ([b"abc"], "argument 0 of k: expected 8 bytes, found 3"),
        ([torch.zeros(1, device="meta")], "argument 0 of k: expected a CPU tensor, found one on meta"),
        ([torch.zeros(1).to_sparse()], "argument 0 of k: expected a CPU tensor, found one of layout torch.sparse_coo"),
        ([emulate.readonly(5)], "argument 0 of k: expected a CPU tensor, found int"),  # type: ignore[arg-type]
        ([2**64], "argument 0 of k: 18446744073709551616 is no number of 64 bits"),
        ([1.0], "argument 0 of k: expected a whole number or a tensor, by its type .u64, found 1.0"),
        (torch.zeros(1), "args: expected a list of arguments, found a tensor"),
    ],
)
def test_arguments(args: list[object], why: str) -> None:
    with pytest.raises(emulate.EmulationError, match=f"^{why}"):
        emulate.launch(f"{KERNEL}ret;\n}}\n", "k", 1, 1, args)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("grid", "block", "why"),
    [
        (0, 1, "grid: expected one to three positive numbers, found 0"),
        (1, (1, 1, 1, 1), "block: expected one to three"),
        (1.5, 1, "grid: expected one to three positive numbers, found 1.5"),
        (1, "8", "block: expected one to three positive numbers, found '8'"),
    ],
)
def test_sizes(grid: object, block: object, why: str) -> None:
    with pytest.raises(emulate.EmulationError, match=f"^{why}"):
        emulate.launch(f"{KERNEL}ret;\n}}\n", "k", grid, block, [torch.zeros(1)])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"shared": -4}, "shared: bytes: expected 0 to 4294967295, found -4"),
        ({"shared": 1.5}, "shared: bytes: expected a whole number, found 1.5"),
        ({"seed": "a"}, "seed: expected a whole number, found 'a'"),
        ({"memory": [5]}, "memory 0: expected a CPU tensor, found int"),
    ],
)
def test_keywords(more: dict[str, object], why: str) -> None:
    assert refusal(f"{KERNEL}ret;\n}}\n", **more) == why


@pytest.mark.parametrize(
    ("tensor", "box", "more", "why"),
    [
        (torch.zeros(64, 64), (2**32 + 64, 64), {}, "box: expected 0 to 4294967295, found 4294967360"),
        (torch.zeros(64, 64), (64.0, 64), {}, "box: expected a whole number, found 64.0"),
        (torch.zeros(64, 64), 8, {}, "box: expected 2 numbers, found 8"),
        (torch.zeros(64, 64), (8, 8), {"element_strides": (1, 1, 1)}, "element_strides: expected 2 numbers"),
        (torch.zeros(64, 64), (8, 8), {"swizzle": [128]}, "swizzle: expected one of 0, 32, 64, 128, found [128]"),
        (torch.zeros(64, 64).T, (8, 8), {}, "expected a dense last dimension, found one of stride 64"),
        (torch.zeros(64, 64, device="meta"), (8, 8), {}, "expected a CPU tensor, found one on meta"),
        (emulate.readonly(torch.zeros(4)), (4,), {}, "expected a CPU tensor, found ReadOnly"),
    ],
)
def test_tensor_maps(tensor: object, box: object, more: dict[str, object], why: str) -> None:
    with pytest.raises(emulate.EmulationError, match=re.escape(why)):
        emulate.encode_tiled(tensor, box, **more)  # type: ignore[arg-type]


def test_orders() -> None:
    assert "completions: expected one of earliest, latest, random, found 'soon'" in refusal(
        f"{KERNEL}ret;\n}}\n", completions="soon"
    )
    found = emulate.orders(seeds=10)
    assert [each["completions"] for each in found] == ["earliest", "latest", *["random"] * 10]
    assert len({each["seed"] for each in found[2:]}) == 10


def test_a_grid_of_more_threads_than_can_be_numbered_runs_no_thread() -> None:
    with pytest.raises(emulate.EmulationError, match=r"4294967296 blocks of 1 threads: at most 2\^31"):
        emulate.launch(f"{KERNEL}ret;\n}}\n", "k", (2**20, 2**12), 1, [torch.zeros(1)])


def test_a_loop_without_end_is_given_up() -> None:
    loop = f"{KERNEL}mov.b32 %r1, 0;\nagain: add.u32 %r1, %r1, 1;\nbra again;\n}}\n"
    with pytest.raises(emulate.Fault) as caught:
        emulate.launch(loop, "k", 1, 1, [torch.zeros(1)], seconds=0.2)
    assert caught.value.kind == "endless" and caught.value.at is not None and caught.value.at.text == "bra again;"
    spin = f"{KERNEL}ld.param.u64 %d1, [p];\nagain: atom.global.add.u32 %r1, [%d1], 1;\nbra again;\n}}\n"
    with pytest.raises(emulate.Fault) as caught:
        emulate.launch(spin, "k", 1, 1, [torch.zeros(1)], seconds=0.2)
    assert caught.value.kind == "endless"


def test_what_waits_for_the_processor_is_not_given_up() -> None:
    """A busy machine makes no kernel endless: the process is stopped for longer than its launch may take."""
    count = (
        f"{KERNEL}mov.b32 %r1, 0;\nagain: add.u32 %r1, %r1, 1;\nsetp.lt.u32 %q, %r1, {1 << 29};\n@%q bra again;\n"
        "ret;\n}\n"
    )

    def launch() -> None:
        emulate.launch(count, "k", 1, 1, [torch.zeros(1)], seconds=3.0)

    launch()  # compiled
    child = os.fork()
    if child == 0:
        try:
            launch()
            os._exit(0)
        finally:
            os._exit(1)
    time.sleep(0.05)
    os.kill(child, signal.SIGSTOP)
    assert os.waitpid(child, os.WUNTRACED)[1] == 0x137F, "it was at an end before it was stopped"
    time.sleep(3.2)
    os.kill(child, signal.SIGCONT)
    assert os.waitpid(child, 0)[1] == 0


# Instructions that sm_90a has and sm_80 has not, and the target that they need.
NEWER = {
    "sm_90a": [
        "wgmma.fence.sync.aligned;",
        "setmaxnreg.dec.sync.aligned.u32 96;",
    ],
    "sm_90": [
        "elect.sync %r1|%q, 0xffffffff;",
        "mapa.shared::cluster.u32 %r1, %r2, %r3;",
        "getctarank.u64 %r1, %d1;",
        "griddepcontrol.wait;",
        "stmatrix.sync.aligned.m8n8.x1.shared.b16 [%r1], {%r2};",
        "barrier.cluster.arrive;",
        "fence.proxy.async.shared::cta;",
        "fence.mbarrier_init.release.cluster;",
        "fence.acq_rel.cluster;",
        "cp.async.bulk.commit_group;",
        "cp.async.bulk.global.shared::cta.bulk_group [%d1], [%r1], %r2;",
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%d1], [%r1], %r2;",
        "prefetch.tensormap [%d1];",
        "mbarrier.try_wait.parity.b64 %q, [%d1], %r1;",
        "mbarrier.arrive.expect_tx.b64 %d2, [%d1], %r1;",
        "mbarrier.arrive.b64 %d2, [%d1], %r1;",
        "mbarrier.arrive.shared::cluster.b64 _, [%r1];",
        "st.shared::cluster.u32 [%r1], %r2;",
        "mov.u32 %r1, %cluster_ctarank;",
        "add.rn.bf16x2 %r1, %r2, %r3;",
        "max.s16x2 %r1, %r2, %r3;",
        "max.relu.s32 %r1, %r2, %r3;",
        "cvt.rn.tf32.f32 %r1, %f1;",
        "red.global.add.noftz.bf16x2 [%d1], %r1;",
    ],
    "": [
        "mbarrier.arrive.b64 %d2, [%d1];",
        "mbarrier.arrive.noComplete.b64 %d2, [%d1], %r1;",
        "mbarrier.test_wait.parity.b64 %q, [%d1], %r1;",
        "cp.async.ca.shared.global [%r1], [%d1], 16;",
        "fence.acq_rel.gpu;",
        "fma.rn.bf16x2 %r1, %r2, %r3, %r1;",
        "cvt.rna.tf32.f32 %r1, %f1;",
        "cvt.rn.bf16x2.f32 %r1, %f1, %f2;",
        "max.s32 %r1, %r2, %r3;",
    ],
}


@pytest.mark.parametrize("target", ["sm_80", "sm_90", "sm_90a"])
def test_what_an_older_target_has_not_is_refused(target: str) -> None:
    for least, lines in NEWER.items():
        for line in lines:
            text = f"{KERNEL}{line}\nret;\n}}\n".replace(".target sm_90a", f".target {target}")
            if target >= least:
                assert translate(parse(text), ("k",)).instructions
            else:
                message = refusal(text)
                assert message.startswith("PTX line 7: ")
                assert message.endswith(f": this needs .target {least}, found {target}: {line}")


@pytest.mark.parametrize("target", ["sm_80", "sm_90", "sm_90a"])
def test_ptxas_refuses_the_same(target: str, tmp_path: Path) -> None:
    ptxas = shutil.which("ptxas")
    if ptxas is None:
        pytest.skip("no ptxas")
    every = [(least, line) for least, lines in NEWER.items() for line in lines]
    text = f"{KERNEL}" + "\n".join(line for _, line in every) + "\nret;\n}\n"
    (tmp_path / "k.ptx").write_text(text.replace(".target sm_90a", f".target {target}"))
    command = [ptxas, f"-arch={target}", "k.ptx", "-o", "k.cubin"]
    said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False).stderr
    refused = {int(number) for number in re.findall(r"line (\d+); error", said)}
    assert refused == {7 + n for n, (least, _) in enumerate(every) if target < least}
