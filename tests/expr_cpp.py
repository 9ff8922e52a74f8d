"""Emitted code compiled and called, for the tests of the middle end: one library for a list of variants.

A variant's snippets run over all pairs of one batch entry and head, its gradients are added up as a kernel would do
it, and its tile test and limits are called for spans the test chooses.
"""

from __future__ import annotations

import ctypes
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fagen.expr import KernelCode, Snippet, emit
from fagen.expr.bounds import Span, Tri
from fagen.expr.regions import Ranges
from fagen.resources import templates_dir
from fagen.runtime.variant import Variant

ISAS = {
    "avx512": ("-mavx512f", "-mavx512dq", "-mavx512bw", "-mavx512vl", "-mfma", "-mf16c"),
    "avx2": ("-mavx2", "-mfma", "-mf16c"),
    "portable": (),
}
# b, h and the like are made for every snippet here, whether it uses them or not.
STRICT = ("-std=c++17", "-fwrapv", "-Wall", "-Wextra", "-Werror", "-Wno-unused-variable", "-Wno-unused-parameter")

_HEAD = """\
#include "fagen/array.h"
using namespace fagen;

struct Ask {
  int32_t b, h, hk, q_len, kv_len, bottom_right;
  const float* s;        // [q_len, kv_len]
  const float* g;        // [q_len, kv_len]: dx, for gradients
  float* results;        // [results, q_len, kv_len]
  int64_t span[4];       // q and kv
  int64_t answer[2 * Ranges::kCapacity + 1];
};
namespace fagen {
namespace {
template <class T> vf real_lanes(T x) { if constexpr (sizeof(T) == sizeof(float)) return broadcast(x); else return x; }
inline vf truth_lanes(vi x) { return to_real(x); }
"""

_ROW = """\
  for (int32_t i = 0; i < q_len; ++i) {
    const int32_t q = ask.bottom_right ? i + kv_len - q_len : i;
"""

_PAIR = """\
    for (int32_t j0 = 0; j0 < kv_len; j0 += kLanes) {
      const vi j = j0 + lane_index();
      const vi kv = j;
      [[maybe_unused]] vf s{};
      [[maybe_unused]] vf dx{};
      for (int lane = 0; lane < kLanes && j0 + lane < kv_len; ++lane) {
        s[lane] = ask.s[int64_t{i} * kv_len + j0 + lane];
        dx[lane] = ask.g[int64_t{i} * kv_len + j0 + lane];
      }
"""


def _scope(code: KernelCode, grads: bool = False) -> list[str]:
    declarations = (*code.declarations, *(code.grad_declarations if grads else ()))
    return [
        *(each.text for each in declarations),
        "const int32_t b = ask.b, h = ask.h, hk = ask.hk, q_len = ask.q_len, kv_len = ask.kv_len;",
    ]


def _run_snippet(name: str, code: KernelCode, snippet: Snippet, masked: bool) -> list[str]:
    lines = [f"void {name}(const BackwardParams& p, const Ask& ask) {{", *_scope(code)]
    lines += [_ROW, *snippet.row, _PAIR, *snippet.pair]
    for number, result in enumerate(snippet.results):
        call = "truth_lanes" if masked and number == len(snippet.results) - 1 else "real_lanes"
        lines += [
            f"{{ const vf result = {call}({result});",
            "for (int lane = 0; lane < kLanes && j0 + lane < kv_len; ++lane)",
            f"ask.results[({number}LL * q_len + i) * kv_len + j0 + lane] = result[lane]; }}",
        ]
    return [*lines, "} } }"]


def _run_grads(name: str, code: KernelCode) -> list[str]:
    lines = [f"void {name}(const BackwardParams& p, const Ask& ask) {{", *_scope(code, True)]
    lines += [_ROW, *code.score_grad.row]
    for number, grad in enumerate(code.param_grads):
        lines += [*grad.row, f"vf sum{number}_lanes{{}};"]
    lines += [_PAIR, *code.score_grad.pair]
    for number, grad in enumerate(code.param_grads):
        lines += ["{", f"const vf g = j < kv_len ? dx * ({code.score_grad.results[grad.factor]}) : vf{{}};"]
        lines += [f"sum{number}_lanes += g;"] if grad.kind == "row" else grad.scatter
        lines += ["}"]
    lines.append("}")
    for number, grad in enumerate(code.param_grads):
        if grad.kind == "row":
            lines += ["{", f"const float total = sum_lanes(sum{number}_lanes);", *grad.scatter, "}"]
    return [*lines, "} }"]


def render(variants: Sequence[Variant], codes: Sequence[KernelCode], snippets: bool) -> str:
    """The C++ of the library; without ``snippets`` only tile tests and limits."""
    lines = [_HEAD]
    table = []
    for n, (variant, code) in enumerate(zip(variants, codes, strict=True)):
        masked = variant.mask is not None
        if snippets:
            lines += _run_snippet(f"score{n}", code, code.score_mask or code.score or Snippet((), (), ("s",)), masked)
            lines += _run_snippet(f"grad{n}", code, code.score_grad_mask or code.score_grad, masked)
            lines += _run_grads(f"scatter{n}", code)
        spans = "const Span q(ask.span[0], ask.span[1]), kv(ask.span[2], ask.span[3]);"
        for name, kind, body in (
            ("test", "Tri", code.tile_test),
            ("keys", "Ranges", code.key_ranges),
            ("queries", "Ranges", code.query_ranges),
        ):
            signature = f"{kind} {name}{n}(const BackwardParams& p, const Ask& ask) {{"
            lanes = ["const Lanes lanes = Lanes::all();"] * any(re.search(r"\blanes\b", line) for line in body)
            lines += [signature, *_scope(code), spans, *lanes, *body, "}"]
        runs = f"score{n}, grad{n}, scatter{n}" if snippets else "nullptr, nullptr, nullptr"
        table.append(f"{{{{{runs}}}, test{n}, {{keys{n}, queries{n}}}}}")
    lines += [
        "using Run = void (*)(const BackwardParams&, const Ask&);",
        "using Test = Tri (*)(const BackwardParams&, const Ask&);",
        "using Limit = Ranges (*)(const BackwardParams&, const Ask&);",
        "struct Functions { Run run[3]; Test test; Limit ranges[2]; };",
        f"const Functions kFunctions[] = {{{', '.join(table)}}};",
        "}  // namespace\n}  // namespace fagen",
        'extern "C" void run(int n, int which, const BackwardParams* p, const Ask* ask) {',
        "kFunctions[n].run[which](*p, *ask); }",
        'extern "C" void bound(int n, int which, const BackwardParams* p, Ask* ask) {',
        "if (which == 0) { ask->answer[0] = static_cast<int64_t>(kFunctions[n].test(*p, *ask)); return; }",
        "const Ranges found = kFunctions[n].ranges[which - 1](*p, *ask);",
        "ask->answer[0] = found.count;",
        "for (int k = 0; k < found.count; ++k) {",
        "ask->answer[1 + 2 * k] = found.range[k].first; ask->answer[2 + 2 * k] = found.range[k].last; } }",
    ]
    return "\n".join(lines) + "\n"


def can_run(isa: str) -> bool:
    """Whether this machine has the ISA."""
    features = {"avx512": {"avx512f", "avx512dq", "avx512bw", "avx512vl"}, "avx2": {"avx2", "fma"}, "portable": set()}
    flags = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    return features[isa] <= set(flags.split())


def compile_library(text: str, folder: Path, compiler: str = "g++", isa: str = "portable", *flags: str) -> Path:
    """Compiles with every warning an error, and no fused multiply-adds unless flags say so."""
    source, library = folder / "code.cpp", folder / f"code_{compiler.replace('+', 'p')}_{isa}.so"
    source.write_text(text)
    command = [compiler, *STRICT, "-O1", "-ffp-contract=off", *ISAS[isa], *flags, "-shared", "-fPIC"]
    command += ["-I", str(templates_dir() / "include"), str(source), "-o", str(library)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:4000]
    return library


class _Array(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("size", ctypes.c_int64 * 4), ("stride", ctypes.c_int64 * 4)]


class _Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("stride", ctypes.c_int64 * 4)]


class _Params(ctypes.Structure):
    """BackwardParams of templates/include/fagen/params.h."""

    _fields_ = [
        ("shape", ctypes.c_int64 * 5),
        ("scale", ctypes.c_float),
        ("inputs", _Tensor * 5),
        ("pointers", ctypes.c_void_p * 3),
        ("grads", _Tensor * 3),
        ("d_sink", ctypes.c_void_p),
        ("params", _Array * 16),
        ("d_params", _Array * 16),
        ("workspace", ctypes.c_void_p),
        ("pool", ctypes.c_void_p),
    ]


class _Ask(ctypes.Structure):
    _fields_ = [
        ("b", ctypes.c_int32),
        ("h", ctypes.c_int32),
        ("hk", ctypes.c_int32),
        ("q_len", ctypes.c_int32),
        ("kv_len", ctypes.c_int32),
        ("bottom_right", ctypes.c_int32),
        ("s", ctypes.c_void_p),
        ("g", ctypes.c_void_p),
        ("results", ctypes.c_void_p),
        ("span", ctypes.c_int64 * 4),
        ("answer", ctypes.c_int64 * 17),
    ]


def _view(array: np.ndarray) -> _Array:
    view = _Array(data=array.ctypes.data)
    for axis in range(4):
        view.size[axis] = array.shape[axis] if axis < array.ndim else 1
        view.stride[axis] = array.strides[axis] // array.itemsize if axis < array.ndim else 0
    return view


@dataclass
class Job:
    """One batch entry and head; ``params`` by name, a bf16 one as uint16."""

    b: int
    h: int
    hk: int
    q_len: int
    kv_len: int
    params: Mapping[str, Any]


class Compiled:
    """A list of variants, compiled."""

    def __init__(self, variants: Sequence[Variant], folder: Path, *options: str, snippets: bool = True):
        """``options`` are those of compile_library after the folder."""
        self.variants = list(variants)
        self.codes = [emit(variant) for variant in variants]
        self._library = ctypes.CDLL(str(compile_library(render(self.variants, self.codes, snippets), folder, *options)))

    def _asked(self, n: int, job: Job) -> tuple[_Params, _Ask]:
        params = _Params()
        for index, param in enumerate(self.variants[n].params):
            params.params[index] = _view(np.asarray(job.params[param.name]))
        ask = _Ask(job.b, job.h, job.hk, job.q_len, job.kv_len, self.variants[n].align == "bottom_right")
        return params, ask

    def _run(self, n: int, which: int, job: Job, s: Any, results: int) -> np.ndarray:
        params, ask = self._asked(n, job)
        scores = np.ascontiguousarray(s, np.float32)
        found = np.full((results, job.q_len, job.kv_len), np.nan, np.float32)
        ask.s = ask.g = scores.ctypes.data
        ask.results = found.ctypes.data
        self._library.run(n, which, ctypes.byref(params), ctypes.byref(ask))
        return found

    def score(self, n: int, job: Job, s: Any) -> np.ndarray:
        """x and, with a mask, allowed (0 or -1), over [q_len, kv_len]."""
        return self._run(n, 0, job, s, 2 if self.variants[n].mask else 1)

    def grad(self, n: int, job: Job, s: Any) -> np.ndarray:
        """The results of score_grad_mask, or of score_grad without a mask."""
        return self._run(n, 1, job, s, len((self.codes[n].score_grad_mask or self.codes[n].score_grad).results))

    def scatter(self, n: int, job: Job, s: Any, dx: Any) -> dict[str, np.ndarray]:
        """Gradients of the params that want one, for dx over [q_len, kv_len] and no mask."""
        params, ask = self._asked(n, job)
        scores, slopes = np.ascontiguousarray(s, np.float32), np.ascontiguousarray(dx, np.float32)
        grads = {}
        for index, param in enumerate(self.variants[n].params):
            if param.grad:
                grads[param.name] = np.zeros(np.asarray(job.params[param.name]).shape, np.float32)
                params.d_params[index] = _view(grads[param.name])
        ask.s, ask.g = scores.ctypes.data, slopes.ctypes.data
        self._library.run(n, 2, ctypes.byref(params), ctypes.byref(ask))
        return grads

    def _bound(self, n: int, which: int, job: Job, q: Span, kv: Span) -> list[int]:
        params, ask = self._asked(n, job)
        ask.span = (ctypes.c_int64 * 4)(q.lo, q.hi, kv.lo, kv.hi)
        self._library.bound(n, which, ctypes.byref(params), ctypes.byref(ask))
        return list(ask.answer)

    def tile_test(self, n: int, job: Job, q: Span, kv: Span) -> Tri:
        return (Tri.NONE, Tri.ALL, Tri.SOME)[self._bound(n, 0, job, q, kv)[0]]

    def key_ranges(self, n: int, job: Job, q: Span) -> Ranges:
        return self._ranges(self._bound(n, 1, job, q, Span(0, 0)))

    def query_ranges(self, n: int, job: Job, kv: Span) -> Ranges:
        return self._ranges(self._bound(n, 2, job, Span(0, 0), kv))

    def _ranges(self, answer: list[int]) -> Ranges:
        return Ranges(tuple((answer[1 + 2 * k], answer[2 + 2 * k]) for k in range(answer[0])))
