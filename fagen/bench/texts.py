"""What the options of `fagen bench` and `python3 -m fagen.bench` say. Imports nothing, so that --help is fast."""

from __future__ import annotations

ROUNDS = 9
TEXTS = {
    "size": "As B1,H8,Hk2,S4096, or Sq and Skv apart; may be repeated.",
    "tokens": "With --length: as many tokens in all, and 2048 / head_dim heads.",
    "length": "Sequences of this length, of --tokens in all, or those of --grid; may be repeated.",
    "grid": "The cells of a grid that the module has: standard, sustained, second, custom, short, host; may be "
    "repeated.",
    "sustained": "Calls back to back for so many seconds a sample, at the card's power limit.",
    "graph": "CUDA graphs of a call in place of calls; forward.",
    "host": "The host's processor time of an eager call, without gradients, in place of the card's; forward.",
    "memory": "The peak memory of a training step, in place of times: fagen's, what no step can do without, and the "
    "unfused formula's; at S 16384 if no length or size is given.",
    "schedules": "Beside the kernels of this module and the unfused formula, in one table; forward; may be repeated.",
    "forward_only": "Leave the backward pass out.",
    "backward_only": "Leave the forward pass out.",
    "flex": "Also against compiled FlexAttention (slow to start).",
    "rounds": "Interleaved rounds; medians are taken over them.",
    "write": "Write the times here, a JSON list of {case, dir, peer, ms, p20, p80, tflops}.",
    "plot": "Draw them as a PNG here.",
    "at_least": "Fail if a ratio to torch (on a card, to its flash backend) is lower: of the geometric mean, as "
    "forward=1.5 or backward=1.2, or of any cell, as cell=0.95; to another, as backward/cudnn=1.2, to the fastest of "
    "torch's own, as cell/fastest=1, or of deterministic kernels to the others, as cell/deterministic=0.85; may be "
    "repeated.",
    "json": "Print one JSON value on stdout, nothing else.",
}
