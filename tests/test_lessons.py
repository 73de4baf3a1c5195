"""The form of the lessons: banners, what may stand where, what stays out."""

import ast

import pytest
import sections as carried
from chapters import parsed
from sections import BANNER, LESSONS, carry, faults

PARAMETERS = pytest.mark.parametrize("path", LESSONS.values(), ids=LESSONS)


def functions(tree):
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]


@PARAMETERS
def test_every_banner_has_the_one_form(path):
    source = path.read_text(encoding="utf-8")
    lines = [line for line in source.splitlines() if line.startswith("# ──")]
    assert lines == [match[0].rstrip() for match in BANNER.finditer(source)]
    assert len({len(line) for line in lines}) == 1, "banners are of one width"
    titles = [match["title"] for match in BANNER.finditer(source)]
    assert len(titles) == len(set(titles))


@pytest.mark.parametrize("lesson", LESSONS)
def test_every_banner_tells_the_truth(lesson):
    assert list(faults(lesson)) == []


@PARAMETERS
def test_every_definition_stands_in_a_section(path):
    source = path.read_text(encoding="utf-8")
    first = source[:BANNER.search(source).start()].count("\n")
    early = [node for node in parsed(source).body
             if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.lineno < first]
    assert early == []


@PARAMETERS
def test_one_function_prints(path):
    tree = parsed(path.read_text(encoding="utf-8"))
    printers = {function.name for function in functions(tree) for node in ast.walk(function)
                if isinstance(node, ast.Call) and ast.unparse(node.func) == "print"}
    assert printers == {"show"}


@PARAMETERS
def test_exceptions_are_caught_broadly_in_two_places_only(path):
    tree = parsed(path.read_text(encoding="utf-8"))
    catchers = [function.name for function in functions(tree) for node in ast.walk(function)
                if isinstance(node, ast.ExceptHandler)
                and (node.type is None or ast.unparse(node.type) in ("Exception", "BaseException"))]
    assert sorted(catchers) == ["run", "run_tool"]


@PARAMETERS
def test_nobody_sleeps_by_the_clock(path):
    tree = parsed(path.read_text(encoding="utf-8"))
    calls = [ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)]
    assert not [name for name in calls if name.endswith("sleep")]


@PARAMETERS
def test_functions_are_short_and_lines_fit(path):
    source = path.read_text(encoding="utf-8")
    assert max(map(len, source.splitlines())) <= 100
    longest = max(functions(parsed(source)), key=lambda node: node.end_lineno - node.lineno)
    assert longest.end_lineno - longest.lineno < 35, longest.name


def banner(title, tag):
    return f"# ── {title} ───── {tag} ──\n"


FIRST = banner("Bus", "new") + "\ndef send():\n    pass\n"
SECOND = (banner("Plans", "new") + "\nPLANS = []\n\n\n" + banner("Bus", "from s15")
          + "\ndef send():\n    pass\n")


@pytest.fixture
def two_lessons(tmp_path, monkeypatch):
    """A function that writes two lessons and makes them the ones that are looked at."""
    paths = {"s15": tmp_path / "first.py", "s16": tmp_path / "second.py"}
    monkeypatch.setattr(carried, "LESSONS", paths)

    def write(first, second):
        paths["s15"].write_text(first, encoding="utf-8")
        paths["s16"].write_text(second, encoding="utf-8")
        return paths["s16"]
    return write


@pytest.mark.parametrize("old, new, fault", [
    ("pass", "return", "Bus is tagged 'from s15' and is not the same"),
    ("from s15", "changed from s15", "Bus is tagged 'changed from s15' and is the same"),
    ("from s15", "from s14", "Bus last changed in s15, not in s14"),
    ("from s15", "new", "Bus is not new: s15 has it"),
    ("PLANS = []", "PLANS = []\n\n\n" + banner("Screen", "from s15"), "Screen last changed in None"),
])
def test_a_banner_that_is_stale_in_either_direction_is_found(two_lessons, old, new, fault):
    two_lessons(FIRST, SECOND)
    assert list(faults("s16")) == []
    two_lessons(FIRST, SECOND.replace(old, new))
    assert fault in "; ".join(faults("s16"))


def test_a_new_section_behind_a_carried_one_is_found(two_lessons):
    two_lessons(FIRST, SECOND + "\n\n" + banner("Late", "new") + "\nLATE = 1\n")
    assert list(faults("s16")) == ["Late is new and stands behind Bus"]


def test_a_mended_section_is_copied_forward(two_lessons):
    mended = FIRST.replace("pass", "return 1")
    path = two_lessons(mended, SECOND)
    carry("s16")
    assert path.read_text(encoding="utf-8") == SECOND.replace("pass", "return 1")
    assert list(faults("s16")) == []
