"""Keeps the chapters honest: their Python blocks are the lesson's code, to the letter.

    python tests/chapters.py             says what has drifted
    python tests/chapters.py --write     refills the blocks from the code

A block stands under an invisible marker that names a definition: <!-- code.py: MessageBus.send -->
"""

import ast
import builtins
import contextlib
import functools
import re
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CHAPTERS = sorted(ROOT.glob("s1*_*/README*.md"))
BLOCK = re.compile(r"(?:^<!-- code\.py: (?P<name>[\w.]+) -->\n)?^```python\n(?P<body>.*?)^```$",
                   re.MULTILINE | re.DOTALL)
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
CALL = re.compile(r"`(?:\w+\.)*(\w+)\([^`]*\)`")


def defined_names(node):
    """The names that a statement defines."""
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return [node.name]
    targets = getattr(node, "targets", [getattr(node, "target", ast.Pass())])
    return [name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)]


@functools.cache
def parsed(source):
    return ast.parse(source)


def source_of(source, dotted):
    """The text of a definition with its decorators, without indentation. Raises KeyError."""
    node = parsed(source)
    for part in dotted.split("."):
        found = [child for child in node.body if part in defined_names(child)]
        if not found:
            raise KeyError(f"code.py defines no {dotted}")
        node = found[0]
    first = min([node.lineno] + [line.lineno for line in getattr(node, "decorator_list", [])])
    return textwrap.dedent("\n".join(source.splitlines()[first - 1:node.end_lineno])) + "\n"


def faults(chapter):
    """What is wrong with a chapter's blocks and names, as sentences."""
    text = chapter.read_text(encoding="utf-8")
    source = chapter.with_name("code.py").read_text(encoding="utf-8")
    for block in BLOCK.finditer(text):
        if not block["name"]:
            yield f"a Python block stands under no marker: {block['body'][:60]!r}"
            continue
        try:
            if block["body"] != source_of(source, block["name"]):
                yield f"the block {block['name']} is not the code"
        except KeyError as error:
            yield error.args[0]
    known = {name for node in ast.walk(parsed(source)) for name in defined_names(node)}
    for name in CALL.findall(FENCE.sub("", text)):
        if name not in known and not hasattr(builtins, name):
            yield f"the text names {name}(), which code.py does not define"


def refill(chapter):
    """Replace each block by the definition that its marker names, if there is one."""
    source = chapter.with_name("code.py").read_text(encoding="utf-8")

    def filled(block):
        with contextlib.suppress(KeyError):
            return (f"<!-- code.py: {block['name']} -->\n```python\n"
                    f"{source_of(source, block['name'] or '')}```")
        return block[0]

    text = BLOCK.sub(filled, chapter.read_text(encoding="utf-8"))
    chapter.write_text(text, encoding="utf-8", newline="\n")


def main():
    """The number of faults, each of which is printed."""
    found = 0
    for chapter in CHAPTERS:
        if "--write" in sys.argv:
            refill(chapter)
        for found, fault in enumerate(faults(chapter), found + 1):
            print(f"{chapter.relative_to(ROOT)}: {fault}")
    return found


if __name__ == "__main__":
    sys.exit(main() > 0)
