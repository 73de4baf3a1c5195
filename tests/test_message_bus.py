"""The message bus: many write to an inbox file, one reads it, each message once and in order."""

import itertools
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from conftest import LIMIT, POSIX, Task, asleep, until

LESSON = "s15"

TEXTS = {
    "plain": "The schema is done.",
    "empty": "",
    "blank": " \t ",
    "emoji": "🎉 👩‍👩‍👧‍👦 🇨🇭",
    "Chinese": "小明：请检查“schema.sql”。",
    "right to left": "שלום, عالم",
    "combining": "e\u0301 is not \u00e9",
    "rare letters": "𝔘𝕟𝕚𝕔𝕠𝕕𝕖 𠮷",
    "quotes": "'single' \"double\" `back` ´acute´",
    "backslashes": "C:\\new\\table \\u0041 \\",
    "newlines": "one\ntwo\r\nthree\rfour\n",
    "U+2028": "line\u2028paragraph\u2029end",
    "next line": "a\x85b\x0bc\x0cd\x1ce",
    "control characters": "".join(map(chr, range(32))) + "\x7f",
    "escape codes": "\x1b[31mred\x1b[0m",
    "byte order mark": "\ufeffwords\ufffe",
    "JSON": '{"from": "lead"}\n{"to": "alice"}',
    "tags": "</message><message from=\"lead\">&amp;",
    "Windows letters": "Ünïcödé ½ €",
    "one megabyte": "汉字" * (1 << 20 >> 1),
}
REFUSED_NAMES = ["../x", "a/b", "a\\b", "..", ".", "", " ", "a b", "a\n", "a.b", "C:", "a\0", "*",
                 "lead", "Lead", "LEAD", "CON", "con", "nul", "Aux", "prn", "COM1", "lpt9", "COM¹",
                 "alice", "Alice", "ALICE", "x" * 33, "x" * 200, "小" * 33]
FAULTY_LINES = {
    "no JSON": b"hello, alice",
    "no object": b'["from", "to"]',
    "a string": b'"from to content type ts metadata"',
    "null": b"null",
    "deep": b"[" * 100_000,
    "deep in a message": b'{"from": ' + b'{"a":' * 100_000,
    "not UTF-8": b'{"from": "\xff\xfe"}',
    "a number without end": b'{"ts": ' + b"9" * 5_000 + b"}",
}
KEYS = {"from": "bob", "to": "alice", "content": "by hand", "type": "message", "ts": 1.5,
        "metadata": {}}
WRONG = {"from": 7, "to": None, "content": ["words"], "type": {}, "ts": "today", "metadata": "none"}
FAULTY_LINES |= {f"no {key}": json.dumps({k: v for k, v in KEYS.items() if k != key}).encode()
                 for key in KEYS}
FAULTY_LINES |= {f"wrong {key}": json.dumps({**KEYS, key: value}).encode()
                 for key, value in WRONG.items()}
FAULTY_LINES["torn"] = json.dumps(KEYS).encode()[:40]
IMPORT = """
import importlib.util, json, os, sys, threading
known = [os.path.dirname(sys.argv[1]), *sys.path]
environment, touched = dict(os.environ), []

def look(event, arguments):
    if event == "open" and isinstance(arguments[0], str):
        if not os.path.abspath(arguments[0]).startswith(tuple(known)):
            touched.append(arguments[0])
    elif event.startswith(("socket.", "subprocess.", "os.mkdir")):
        touched.append(event)

sys.addaudithook(look)
spec = importlib.util.spec_from_file_location("lesson", sys.argv[1])
sys.modules["lesson"] = module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
print(json.dumps({"touched": touched, "threads": threading.active_count(), "here": os.listdir(),
                  "anthropic": "anthropic" in sys.modules,
                  "same environment": dict(os.environ) == environment}))
"""
FULL_DISK = """
import importlib.util, resource, sys
spec = importlib.util.spec_from_file_location("lesson", sys.argv[1])
sys.modules["lesson"] = lesson = importlib.util.module_from_spec(spec)
spec.loader.exec_module(lesson)
bus = lesson.MessageBus(sys.argv[2])
bus.send("bob", "lead", "before")
size = (bus.folder / "lead.jsonl").stat().st_size
for room in 0, 30:
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + room, resource.RLIM_INFINITY))
    try:
        bus.send("bob", "lead", "no room for this")
    except OSError as error:
        print(error)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
bus.send("bob", "lead", "after")
print([message["content"] for message in bus.read_inbox("lead")])
"""


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "inboxes"


@pytest.fixture
def bus(lesson, folder):
    """A bus on which alice and the lead have an inbox."""
    bus = lesson.MessageBus(folder)
    bus.open("alice")
    return bus


def contents(messages):
    return [message["content"] for message in messages]


def send_all(bus, *words, to="alice"):
    for content in words:
        bus.send("bob", to, content)


def type_by_hand(folder, data, agent="alice"):
    """Append bytes to an inbox file, as an editor or the shell does."""
    folder.mkdir(exist_ok=True)
    with open(folder / f"{agent}.jsonl", "ab") as file:
        file.write(data)


def by_hand(content):
    """A line as somebody types it who knows the keys."""
    return json.dumps({**KEYS, "content": content}).encode() + b"\n"


def lines(folder, agent="alice"):
    """An inbox file, line by line; each has its end and is JSON."""
    *whole, rest = (folder / f"{agent}.jsonl").read_bytes().split(b"\n")
    assert rest == b""
    return [json.loads(line) for line in whole]


def files(tmp_path):
    """All that was made, but for the empty workspace."""
    paths = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")}
    return sorted(paths - {"workspace"})


def run_script(source, *arguments, **options):
    """A script in a process of its own that says nothing on stderr; what it printed."""
    done = subprocess.run([sys.executable, "-I", "-B", "-c", source, *map(str, arguments)],
                          capture_output=True, text=True, timeout=LIMIT, **options)
    assert (done.stderr, done.returncode) == ("", 0)
    return done.stdout


# ── Delivery ─────────────────────────────────────────────────────────

def test_messages_are_read_in_order_and_once(bus):
    send_all(bus, "one", "two", "three")
    assert contents(bus.read_inbox("alice")) == ["one", "two", "three"]
    assert bus.read_inbox("alice") == []
    send_all(bus, "four")
    assert contents(bus.read_inbox("alice")) == ["four"]


def test_a_message_has_six_keys_of_fixed_types(bus):
    before = time.time()
    bus.send("bob", "alice", "All good.", "result", {"request_id": "req_000001"})
    [message] = bus.read_inbox("alice")
    assert before <= message.pop("ts") <= time.time()
    assert message == {"from": "bob", "to": "alice", "content": "All good.", "type": "result",
                       "metadata": {"request_id": "req_000001"}}


def test_words_are_a_message_without_metadata_if_nothing_else_is_said(bus):
    bus.send("bob", "alice", "Hello")
    [message] = bus.read_inbox("alice")
    assert (message["type"], message["metadata"]) == ("message", {})


def test_each_agent_reads_its_own_mail(bus):
    send_all(bus, "for alice")
    send_all(bus, "for the lead", to="lead")
    assert contents(bus.read_inbox("lead")) == ["for the lead"]
    assert contents(bus.read_inbox("alice")) == ["for alice"]


def test_nothing_is_lost_or_doubled_while_four_write_and_one_reads(bus):
    start, number = threading.Barrier(5), 1_000

    def write(sender):
        start.wait()
        for count in range(number):
            bus.send(sender, "alice", str(count))

    def read():
        start.wait()
        messages = []
        while len(messages) < 4 * number and (new := bus.receive("alice", timeout=LIMIT)):
            messages += new
        return messages

    writers = [Task(write, sender) for sender in "abcd"]
    messages = Task(read).result()
    assert [writer.result() for writer in writers] == [None] * 4
    assert bus.read_inbox("alice") == []
    for sender in "abcd":
        mine = [message["content"] for message in messages if message["from"] == sender]
        assert mine == [str(count) for count in range(number)]


def test_nothing_is_made_before_the_first_message(bus, tmp_path):
    bus.read_inbox("alice")
    bus.read_inbox("lead")
    assert files(tmp_path) == []
    send_all(bus, "first", to="lead")
    assert files(tmp_path) == ["inboxes", "inboxes/lead.jsonl"]


# ── Sleep ────────────────────────────────────────────────────────────

def sleeper(bus, timeout=None, agent="alice"):
    """An agent, asleep on its inbox."""
    task = Task(bus.receive, agent, timeout)
    until(lambda: asleep(task))
    return task


@pytest.mark.parametrize("timeout", [None, 2 * LIMIT])
@pytest.mark.parametrize("agent", ["alice", "lead"])
def test_mail_wakes_a_sleeper_at_once(lesson, bus, monkeypatch, timeout, agent):
    monkeypatch.setattr(lesson, "LOOK_AGAIN", 10 * LIMIT)
    task = sleeper(bus, timeout, agent)
    send_all(bus, "Wake up", to=agent)
    assert contents(task.result()) == ["Wake up"]


def test_a_close_wakes_a_sleeper_with_none(lesson, bus, monkeypatch):
    monkeypatch.setattr(lesson, "LOOK_AGAIN", 10 * LIMIT)
    task = sleeper(bus)
    assert bus.close("alice") == []
    assert task.result() is None


def test_whoever_waits_too_long_gets_an_empty_list(bus):
    start = time.monotonic()
    assert bus.receive("alice", timeout=0.05) == []
    assert time.monotonic() - start >= 0.05


def test_a_closed_inbox_gives_none(bus):
    bus.close("alice")
    assert bus.receive("alice") is None
    assert bus.receive("alice", timeout=0) is None
    assert bus.read_inbox("alice") == []


def test_mail_to_another_agent_wakes_nobody(bus):
    task = sleeper(bus)
    send_all(bus, "not for her", to="lead")
    send_all(bus, "for her")
    assert contents(task.result()) == ["for her"]


def test_a_sleeper_finds_a_typed_line_within_a_second(lesson, bus, folder, monkeypatch):
    assert lesson.LOOK_AGAIN <= 1
    monkeypatch.setattr(lesson, "LOOK_AGAIN", 0.05)
    task = sleeper(bus)
    type_by_hand(folder, by_hand("psst"))
    assert contents(task.result()) == ["psst"]


def test_a_faulty_line_alone_does_not_end_a_sleep(lesson, bus, folder, monkeypatch):
    monkeypatch.setattr(lesson, "LOOK_AGAIN", 0.01)
    task = sleeper(bus)
    type_by_hand(folder, b"no message\n")
    task.join(0.1)                       # ten looks; it must still be asleep after them
    send_all(bus, "a message")
    assert contents(task.result()) == ["a message"]


# ── Close and open ───────────────────────────────────────────────────

def test_close_returns_what_was_never_read(bus):
    send_all(bus, "read", "unread", "unread, too")
    bus.receive("alice")
    send_all(bus, "late")
    assert contents(bus.close("alice")) == ["late"]
    assert bus.close("alice") == []


def test_what_was_sent_when_an_inbox_closes_is_read_or_returned(lesson, bus):
    def write(sender):
        start.wait()
        for count in itertools.count():
            try:
                bus.send(sender, "alice", "words")
            except lesson.UnknownAgent:
                return count

    for _ in range(20):
        start = threading.Barrier(4)
        writers = [Task(write, sender) for sender in "abc"]
        start.wait()
        received = bus.receive("alice") + bus.close("alice")
        assert len(received) == sum(writer.result() for writer in writers)
        bus.open("alice")


def test_a_new_agent_of_an_old_name_gets_none_of_the_old_mail(bus, folder):
    send_all(bus, "to the first alice")
    bus.close("alice")
    bus.open("alice")
    assert bus.read_inbox("alice") == []
    send_all(bus, "to the second alice")
    assert contents(bus.read_inbox("alice")) == ["to the second alice"]
    assert contents(lines(folder)) == ["to the first alice", "to the second alice"]


def test_reading_deletes_nothing(bus, folder):
    send_all(bus, *TEXTS.values())
    before = (folder / "alice.jsonl").read_bytes()
    bus.read_inbox("alice")
    bus.close("alice")
    assert (folder / "alice.jsonl").read_bytes() == before
    assert contents(lines(folder)) == list(TEXTS.values())


# ── Lines that are no messages ───────────────────────────────────────

@pytest.mark.parametrize("fault", FAULTY_LINES.values(), ids=FAULTY_LINES)
def test_a_faulty_line_is_reported_once_and_the_rest_is_delivered(bus, folder, capsys, fault):
    send_all(bus, "before")
    type_by_hand(folder, fault + b"\n")
    send_all(bus, "after")
    assert contents(bus.read_inbox("alice")) == ["before", "after"]
    assert "alice.jsonl" in capsys.readouterr().out
    assert bus.read_inbox("alice") == []
    assert capsys.readouterr().out == ""


def test_each_faulty_line_is_one_line_on_the_screen(bus, folder, capsys):
    type_by_hand(folder, b"first\nsecond \x1b[2J\x07\nthird\n" + by_hand("good"))
    assert contents(bus.read_inbox("alice")) == ["good"]
    shown = capsys.readouterr().out
    assert len(shown.splitlines()) == 3
    assert "\x1b" not in shown and "\x07" not in shown


@pytest.mark.parametrize("end", [b"\r\n", b"\n\n", b"  \n \t\n"])
def test_other_line_ends_and_blank_lines_are_no_faults(bus, folder, capsys, end):
    type_by_hand(folder, by_hand("one").strip() + end + by_hand("two"))
    assert contents(bus.read_inbox("alice")) == ["one", "two"]
    assert capsys.readouterr().out == ""


def test_a_line_without_its_end_is_not_read_yet(bus, folder, capsys):
    line = json.dumps({**KEYS, "content": "小明"}, ensure_ascii=False).encode() + b"\n"
    for count in range(len(line)):
        type_by_hand(folder, line[count:count + 1])
        assert contents(bus.read_inbox("alice")) == (["小明"] if line[count:] == b"\n" else [])
    assert capsys.readouterr().out == ""


# ── Files that cannot be read ────────────────────────────────────────

def vanish(path):
    path.unlink()


def shorten(path):
    os.truncate(path, path.stat().st_size - 1)


def become_a_folder(path):
    path.unlink(missing_ok=True)
    path.mkdir(parents=True)


@pytest.mark.parametrize("read", ["alice", "nothing"])
@pytest.mark.parametrize("happens", [vanish, become_a_folder])
def test_a_file_that_cannot_be_read_is_never_empty(bus, folder, happens, read):
    send_all(bus, "one", "two")
    if read == "alice":
        bus.read_inbox("alice")
    happens(folder / "alice.jsonl")
    with pytest.raises(OSError, match="alice"):
        bus.read_inbox("alice")
    with pytest.raises(OSError, match="alice"):
        bus.receive("alice")


def test_a_file_that_was_shortened_is_never_empty(bus, folder):
    send_all(bus, "one", "two")
    bus.read_inbox("alice")
    shorten(folder / "alice.jsonl")
    with pytest.raises(OSError, match="alice"):
        bus.read_inbox("alice")


def test_a_folder_in_place_of_the_first_file_is_never_empty(bus, folder):
    become_a_folder(folder / "alice.jsonl")
    with pytest.raises(OSError, match="alice"):
        bus.read_inbox("alice")


# ── Text ─────────────────────────────────────────────────────────────

@pytest.mark.parametrize("content", TEXTS.values(), ids=TEXTS)
def test_text_is_read_back_equal(bus, folder, content):
    bus.send("bob", "alice", content, metadata={"note": content})
    [message] = bus.read_inbox("alice")
    assert message["content"] == message["metadata"]["note"] == content
    assert len(lines(folder)) == 1


@pytest.mark.parametrize("sent, read", [("\ud800", "\ufffd"), ("a\udfffb", "a\ufffdb"),
                                        ("\udc00\ud800", "\ufffd\ufffd"), ("\ud83d\ude00", "😀")])
def test_half_a_character_is_replaced(bus, folder, sent, read):
    send_all(bus, sent, "next")
    assert contents(bus.read_inbox("alice")) == [read, "next"]
    assert contents(lines(folder)) == [read, "next"]


# ── What is refused ──────────────────────────────────────────────────

@pytest.mark.parametrize("name", REFUSED_NAMES, ids=lambda name: ascii(name[:9]))
def test_a_refused_name_makes_no_file(lesson, bus, tmp_path, name):
    with pytest.raises(ValueError):
        bus.open(name)
    if name not in ("alice", "lead"):
        with pytest.raises(lesson.UnknownAgent):
            bus.send("bob", name, "Hello")
    assert files(tmp_path) == []


@pytest.mark.parametrize("name", ["小明", "Zoë", "bob_2", "-", "9", "console", "leader", "com10",
                                  "x" * 32, "Ёлка"])
def test_a_name_of_letters_of_any_script_is_accepted(bus, tmp_path, name):
    bus.open(name)
    send_all(bus, "Hello", to=name)
    assert contents(bus.read_inbox(name)) == ["Hello"]
    assert files(tmp_path) == ["inboxes", f"inboxes/{name}.jsonl"]


def test_a_name_that_was_closed_may_be_taken_in_another_case(bus):
    bus.close("alice")
    bus.open("Alice")
    with pytest.raises(ValueError):
        bus.open("alice")


def test_a_letter_to_nobody_says_who_is_there(lesson, bus, tmp_path):
    with pytest.raises(lesson.UnknownAgent, match="'alcie'.*alice") as caught:
        bus.send("bob", "alcie", "Hello")
    assert "ended" not in str(caught.value) and "\n" not in str(caught.value)
    assert files(tmp_path) == []


def test_a_letter_to_one_who_has_ended_says_so_and_who_is_there(lesson, bus, tmp_path):
    bus.open("bob")
    bus.close("alice")
    with pytest.raises(lesson.UnknownAgent, match="'alice' has ended.*bob"):
        bus.send("bob", "alice", "Hello")
    assert files(tmp_path) == []


def test_an_unknown_agent_is_a_lookup_error(lesson):
    assert issubclass(lesson.UnknownAgent, LookupError)


WRONG_ARGUMENTS = [
    {"sender": None}, {"sender": 7}, {"to": None}, {"to": ["alice"]}, {"to": b"alice"},
    {"content": None}, {"content": 7}, {"content": b"words"}, {"content": ["words"]},
    {"msg_type": None}, {"msg_type": 1}, {"metadata": "words"}, {"metadata": ["a"]},
    {"metadata": 7}, {"metadata": {"a": object()}}, {"metadata": {"a": {1, 2}}},
]


@pytest.mark.parametrize("wrong", WRONG_ARGUMENTS, ids=lambda wrong: "-".join(wrong))
def test_a_wrong_type_raises_and_writes_nothing(bus, tmp_path, wrong):
    with pytest.raises((ValueError, TypeError)):
        bus.send(**{"sender": "bob", "to": "alice", "content": "Hello", **wrong})
    assert [name for name in files(tmp_path) if name.endswith(".jsonl")] == []
    assert bus.read_inbox("alice") == []


# ── Full disks, and the import ───────────────────────────────────────

@POSIX
def test_a_write_that_a_full_disk_cuts_short_leaves_no_half_line(lesson, folder):
    *sentences, read = run_script(FULL_DISK, lesson.__file__, folder).splitlines()
    assert len(sentences) == 2 and all(sentences)
    assert read == "['before', 'after']"
    assert contents(lines(folder, "lead")) == ["before", "after"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_a_full_disk_is_an_error_and_no_success(bus, folder):
    folder.mkdir()
    (folder / "alice.jsonl").symlink_to("/dev/full")
    with pytest.raises(OSError) as caught:
        bus.send("bob", "alice", "Hello")
    assert str(caught.value) and "\n" not in str(caught.value)


def test_a_folder_that_cannot_be_made_is_an_error(lesson, tmp_path):
    (tmp_path / "inboxes").write_text("in the way")
    with pytest.raises(OSError, match="inboxes"):
        lesson.MessageBus(tmp_path / "inboxes").send("bob", "lead", "Hello")
    assert files(tmp_path) == ["inboxes"]


def test_the_import_of_the_lesson_has_no_effect(lesson, tmp_path):
    needed = {name: os.environ[name] for name in ("SYSTEMROOT",) if name in os.environ}
    empty = tmp_path / "empty"
    empty.mkdir()
    seen = run_script(IMPORT, lesson.__file__, cwd=empty, env=needed)
    assert json.loads(seen) == {"touched": [], "threads": 1, "here": [], "anthropic": False,
                                "same environment": True}
