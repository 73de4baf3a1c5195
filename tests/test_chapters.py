"""The chapters say what the code does."""

import re
import shutil
import subprocess
import sys

import pytest
from chapters import CHAPTERS, ROOT, faults, refill

CODE = "def add(a, b):\n    return a + b\n\n\nclass Pen:\n    def draw(self):\n        return 1\n"
GOOD = ("Text with `add()`.\n\n"
        "<!-- code.py: Pen.draw -->\n```python\ndef draw(self):\n    return 1\n```\n")


@pytest.fixture
def chapter(tmp_path):
    (tmp_path / "code.py").write_text(CODE)
    return tmp_path / "README.md"


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_a_chapter_quotes_the_code_to_the_letter_and_names_only_what_exists(path):
    assert list(faults(path)) == []


def test_every_lesson_has_its_chapter():
    lessons = {path.parent for path in ROOT.glob("s1*_*/code.py")}
    assert lessons and lessons <= {path.parent for path in CHAPTERS}


@pytest.mark.parametrize("old, new, fault", [
    ("return 1", "return 2", "the block Pen.draw is not the code"),
    ("<!-- code.py: Pen.draw -->\n", "", "a Python block stands under no marker"),
    ("`add()`", "`subtract(a, b)`", "the text names subtract()"),
    ("code.py: Pen.draw", "code.py: Pen.erase", "code.py defines no Pen.erase"),
])
def test_a_drifted_chapter_is_found(chapter, old, new, fault):
    chapter.write_text(GOOD)
    assert list(faults(chapter)) == []
    chapter.write_text(GOOD.replace(old, new))
    assert fault in next(faults(chapter))


def test_refilling_mends_a_block_and_leaves_the_rest(chapter):
    chapter.write_text(GOOD.replace("return 1", "return 2"))
    refill(chapter)
    assert chapter.read_text() == GOOD


def test_the_readme_gives_two_commands_and_ci_runs_the_second():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    first, second = re.findall(r"^```sh\n(python3 -m venv .*)\n```$", readme, re.MULTILINE)
    assert first.endswith("code.py --demo")
    assert second in (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()


def test_what_agents_write_is_not_taken_for_a_test(tmp_path):
    for written in "tests/test_ours.py", "workspace/test_schema.py":
        (tmp_path / written).parent.mkdir()
        (tmp_path / written).write_text("def test_it():\n    pass\n", encoding="utf-8")
    shutil.copy(ROOT / "pytest.ini", tmp_path)
    found = subprocess.run([sys.executable, "-m", "pytest", "--collect-only", "-q"], cwd=tmp_path,
                           capture_output=True, encoding="utf-8").stdout
    assert "test_ours.py" in found and "test_schema.py" not in found
