"""Counts of lines: what the tools print, and what a report says of lines that never ran."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from fagen.build.coverage import _from_json, _from_text
from fagen.errors import ToolchainError
from fagen.runtime.check.report import FAILED, PARTIAL, PASSED, CheckReport, Unrun, VariantReport, explain, table
from fagen.toolchain import Compiler, find_gcov

PASSING = VariantReport("mine", PASSED, seed=0, level="full", command="fagen check m -v mine")
LINE = Unrun("mine_forward.cpp", 7, "return false;")


def test_a_line_that_never_ran_makes_a_passed_verdict_partial_and_is_listed():
    report = PASSING.counted(200, (LINE,), "")
    assert report.verdict == PARTIAL
    assert "  no case runs mine_forward.cpp:7: return false;" in explain(report)
    assert VariantReport.from_json(json.loads(json.dumps(report.to_json()))) == report
    assert replace(PASSING, verdict=FAILED).counted(200, (LINE,), "").verdict == FAILED


def test_what_was_not_counted_is_said_once_with_the_variants_it_holds_for():
    plain, other = PASSING.counted(0, (), "lines not counted: no gcov"), replace(PASSING, variant="other")
    assert plain.verdict == PASSED
    both = table(CheckReport((plain, replace(plain, variant="other")), 0, "full"))
    assert both.splitlines().count("lines not counted: no gcov") == 1
    assert "lines not counted: no gcov (mine)" in table(CheckReport((plain, other), 0, "full"))


def test_gcov_s_json_is_read():
    lines = [{"line_number": 3, "count": 5}, {"line_number": 4, "count": 0}]
    files = [{"file": "a.h", "lines": [{"line_number": 1, "count": 1}]}, {"file": "a.cpp", "lines": lines}]
    assert list(_from_json(json.dumps({"files": files}) + "\n", "a.cpp")) == [(3, 5), (4, 0)]


def test_llvm_cov_s_text_is_read():
    text = """\
        -:    0:Source:include/a.h
        9:    1:int f();
        -:    0:Source:a.cpp
        -:    0:Graph:a.gcno
        -:    1:#include "a.h"
        5:    2:int g(int x) {
    #####:    3:  if (x) return 1;
       12*:    4:  return 2;
"""
    assert list(_from_text(text, "a.cpp")) == [(2, 5), (3, 0), (4, 12)]


def test_gcov_must_be_of_the_compiler_s_own_version(tmp_path):
    tool = tmp_path / "gcov"
    tool.write_text("#!/bin/sh\necho 'gcov (Some 12.2.0-14) 12.2.0'\n")
    tool.chmod(0o755)

    def compiler(version: str) -> Compiler:
        return Compiler((str(tmp_path / "g++"),), "gcc", version, "x86_64", "")

    path = {"PATH": str(tmp_path)}
    assert find_gcov(compiler("(Some 12.2.0-14) 12.2.0"), path) == (str(tool),)
    with pytest.raises(ToolchainError, match="no gcov"):
        find_gcov(compiler("(Some 13.1.0-2) 13.1.0"), path)
    with pytest.raises(ToolchainError, match="no llvm-cov"):
        find_gcov(replace(compiler("14.0.6"), kind="clang"), path)
