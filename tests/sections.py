"""Keeps carried-over code equal to its origin: a lesson's banners say where each section comes from.

    python tests/sections.py             says which banner is not true
    python tests/sections.py --write     copies each `from` section forward from its origin
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LESSONS = {path.parent.name[:3]: path for path in sorted(ROOT.glob("s1*_*/code.py"))}
BANNER = re.compile(r"^# ── (?P<title>.+?) ─+ (?P<tag>new|(?P<how>changed from|from) (?P<origin>s\d\d))"
                    r" ──$\n", re.MULTILINE)
FIRST = "Registries"      # may stand before what is new, because decorators need it


def sections(source):
    """{title: (banner, text)} in the order of the file."""
    banners = list(BANNER.finditer(source))
    ends = [banner.start() for banner in banners[1:]] + [len(source)]
    return {banner["title"]: (banner, source[banner.end():end].strip("\n"))
            for banner, end in zip(banners, ends)}


def read(lesson):
    return sections(LESSONS[lesson].read_text(encoding="utf-8"))


def faults(lesson):
    """Which of a lesson's banners are not true, as sentences."""
    before = {other: read(other) for other in LESSONS if other < lesson}
    carried = ""
    for title, (banner, text) in read(lesson).items():
        last = max((other for other in before if title in before[other]
                    and before[other][title][0]["how"] != "from"), default=None)
        if banner["tag"] == "new":
            if last:
                yield f"{title} is not new: {last} has it"
            if carried and title != FIRST:
                yield f"{title} is new and stands behind {carried}"
            continue
        carried = title if title != FIRST else carried
        if banner["origin"] != last:
            yield f"{title} last changed in {last}, not in {banner['origin']}"
        elif (text == before[last][title][1]) != (banner["how"] == "from"):
            yield f"{title} is tagged '{banner['tag']}' and is " + (
                "the same" if banner["how"] == "changed from" else "not the same")


def carry(lesson):
    """Copy the text of each `from` section of a lesson from its origin."""
    path = LESSONS[lesson]
    source = path.read_text(encoding="utf-8")
    for title, (banner, text) in list(sections(source).items()):
        if banner["how"] == "from":
            origin = read(banner["origin"])[title][1]
            begin = sections(source)[title][0].end()
            rest = source[begin:].lstrip("\n")
            source = source[:begin] + "\n" + origin + (rest[len(text):] if text else "\n\n\n" + rest)
    path.write_text(source.rstrip("\n") + "\n", encoding="utf-8", newline="\n")


def main():
    """The number of faults, each of which is printed."""
    found = 0
    for lesson in LESSONS:
        if "--write" in sys.argv:
            carry(lesson)
        for found, fault in enumerate(faults(lesson), found + 1):
            print(f"{lesson}: {fault}")
    return found


if __name__ == "__main__":
    sys.exit(main() > 0)
