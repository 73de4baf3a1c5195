"""The form of the lessons: banners, what may stand where, what stays out."""

import ast
import re

import pytest
from conftest import LESSONS

BANNER = re.compile(r"^# ── (?P<title>.+?) ─+ (?P<tag>new|changed from s\d\d|from s\d\d) ──$",
                    re.MULTILINE)
PARAMETERS = pytest.mark.parametrize("path", LESSONS.values(), ids=LESSONS)


def functions(tree):
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]


@PARAMETERS
def test_every_banner_has_the_one_form(path):
    source = path.read_text(encoding="utf-8")
    lines = [line for line in source.splitlines() if line.startswith("# ──")]
    assert lines == [match[0] for match in BANNER.finditer(source)]
    assert len({len(line) for line in lines}) == 1, "banners are of one width"
    titles = [match["title"] for match in BANNER.finditer(source)]
    assert len(titles) == len(set(titles))


def test_the_first_lesson_is_new_throughout():
    tags = [match["tag"] for match in BANNER.finditer(LESSONS["s15"].read_text(encoding="utf-8"))]
    assert set(tags) == {"new"}


@PARAMETERS
def test_every_definition_stands_in_a_section(path):
    source = path.read_text(encoding="utf-8")
    first = source[:BANNER.search(source).start()].count("\n")
    early = [node for node in ast.parse(source).body
             if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.lineno < first]
    assert early == []


@PARAMETERS
def test_one_function_prints(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    printers = {function.name for function in functions(tree) for node in ast.walk(function)
                if isinstance(node, ast.Call) and ast.unparse(node.func) == "print"}
    assert printers == {"show"}


@PARAMETERS
def test_exceptions_are_caught_broadly_in_two_places_only(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    catchers = [function.name for function in functions(tree) for node in ast.walk(function)
                if isinstance(node, ast.ExceptHandler)
                and (node.type is None or ast.unparse(node.type) in ("Exception", "BaseException"))]
    assert sorted(catchers) == ["run", "run_tool"]


@PARAMETERS
def test_nobody_sleeps_by_the_clock(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    calls = [ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)]
    assert not [name for name in calls if name.endswith("sleep")]


@PARAMETERS
def test_functions_are_short_and_lines_fit(path):
    source = path.read_text(encoding="utf-8")
    assert max(map(len, source.splitlines())) <= 100
    longest = max(functions(ast.parse(source)), key=lambda node: node.end_lineno - node.lineno)
    assert longest.end_lineno - longest.lineno < 35, longest.name
