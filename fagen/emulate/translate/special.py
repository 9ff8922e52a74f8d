"""Special registers: what each is in C++. Source: PTX ISA, Special Registers."""

from __future__ import annotations

# Numbers of Calls::special, as machine.h has them.
_MACHINE = {
    "clock": 0, "clock_hi": 1, "clock64": 2, "globaltimer": 3, "globaltimer_lo": 4, "globaltimer_hi": 5, "smid": 6,
    "nsmid": 7, "gridid": 8, "dynamic_smem_size": 9, "total_smem_size": 10, "aggr_smem_size": 10,
    "current_graph_exec": 11,
}  # fmt: skip

SPECIAL: dict[str, str] = {
    "%laneid": "t.lane",
    "%warpid": "t.warp",
    "%nwarpid": "((t.ntid[0] * t.ntid[1] * t.ntid[2] + 31) / 32)",
    "%lanemask_eq": "(1u << t.lane)",
    "%lanemask_le": "(0xffffffffu >> (31 - t.lane))",
    "%lanemask_lt": "((1u << t.lane) - 1u)",
    "%lanemask_ge": "(0xffffffffu << t.lane)",
    "%lanemask_gt": "(0xfffffffeu << t.lane)",
    "%is_explicit_cluster": "(t.cluster_nctaid[0] * t.cluster_nctaid[1] * t.cluster_nctaid[2] != 1)",
    "WARP_SZ": "32u",
    **{f"%{name}": f"call.special(t, {number})" for name, number in _MACHINE.items()},
    **{f"%{name}.{x}": f"t.{name}[{n}]" for name in ("tid", "ntid", "ctaid", "nctaid") for n, x in enumerate("xyz")},
    # A launch without clusters is one of clusters of one block.
    **{f"%cluster_ctaid.{axis}": f"t.cluster_ctaid[{n}]" for n, axis in enumerate("xyz")},
    **{f"%cluster_nctaid.{axis}": f"t.cluster_nctaid[{n}]" for n, axis in enumerate("xyz")},
    **{f"%clusterid.{axis}": f"(t.ctaid[{n}] / t.cluster_nctaid[{n}])" for n, axis in enumerate("xyz")},
    **{f"%nclusterid.{axis}": f"(t.nctaid[{n}] / t.cluster_nctaid[{n}])" for n, axis in enumerate("xyz")},
    "%cluster_ctarank": "t.cluster_rank",
    "%cluster_nctarank": "(t.cluster_nctaid[0] * t.cluster_nctaid[1] * t.cluster_nctaid[2])",
    **{f"%envreg{n}": "0u" for n in range(32)},
}  # fmt: skip
