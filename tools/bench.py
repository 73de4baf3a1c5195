"""Measures what the lessons promise: latency, idle load, start-up. Prints figures, judges nothing.

    python tools/bench.py                      all measurements of lesson s17
    python tools/bench.py wake idle            only these
    python tools/bench.py --lesson PATH        another code.py
"""

import argparse
import importlib.util
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "tools"))
from offline_model import serve  # noqa: E402

IDLE_TEAM = 100          # teammates that rest
IDLE_SECONDS = 10
SENDS = 200
STARTS = 10
STOPS = 50
CROWD = 300              # teammates that are stopped at once
MAIL = 4_000             # messages by four writers
TASKS = 100              # on the board


class Team:
    """A lesson in a workspace of its own, with a model that answers at once."""

    def __init__(self, path):
        self.heard = threading.Event()
        self.server = serve(self.answer)
        os.environ.update(ANTHROPIC_BASE_URL=self.server.url, ANTHROPIC_API_KEY="local")
        spec = importlib.util.spec_from_file_location("lesson", path)
        self.lesson = importlib.util.module_from_spec(spec)
        sys.modules["lesson"] = self.lesson
        spec.loader.exec_module(self.lesson)
        self.folder = tempfile.TemporaryDirectory()
        self.lesson.use_workspace(self.folder.name)
        self.lesson.show = lambda *_: None       # hundreds of lines would hide the figures

    def answer(self, request):
        self.heard.set()
        return "ok"

    def spawn(self, name):
        self.lesson.spawn_teammate(self.lesson.LEAD, name, "tester", "Say ok.")

    def until_rest(self):
        """Wait until every teammate is idle or has ended."""
        busy = (self.lesson.PENDING, self.lesson.RUNNING)
        self.lesson.BUS.wait("lead", lambda: not any(
            member.state in busy or self.unread(member) for member in self.lesson.TEAM.values()))

    def unread(self, member):
        return member.state == self.lesson.IDLE and self.lesson.BUS.has_mail(member.name)


def middle_and_worst(times):
    """Times in milliseconds as a text."""
    return f"median {statistics.median(times):.1f} ms, worst {max(times):.1f} ms"


def wake(path):
    """From send to the receiver's next model call."""
    team = Team(path)
    team.spawn("alice")
    team.until_rest()
    taken = []
    for _ in range(SENDS):
        team.until_rest()
        team.heard.clear()
        begin = time.perf_counter()
        team.lesson.BUS.send("lead", "alice", "hello")
        team.heard.wait()
        taken.append((time.perf_counter() - begin) * 1000)
    return f"send to next model call: {middle_and_worst(taken)}"


def idle(path):
    """The load of teammates that rest."""
    team = Team(path)
    for number in range(IDLE_TEAM):
        team.spawn(f"t{number}")
    team.until_rest()
    time.sleep(1)                            # the last of them are still falling asleep
    begin = time.process_time()
    time.sleep(IDLE_SECONDS)
    load = (time.process_time() - begin) / IDLE_SECONDS
    return f"{IDLE_TEAM} idle teammates for {IDLE_SECONDS} s: {load:.2%} of a core"


def mail(path):
    """Mail under four writers."""
    bus = Team(path).lesson.BUS
    bus.open("alice")
    writers = [threading.Thread(target=lambda: [bus.send("lead", "alice", "x" * 100)
                                                for _ in range(MAIL // 4)]) for _ in range(4)]
    begin, read = time.perf_counter(), 0
    for writer in writers:
        writer.start()
    while read < MAIL:
        read += len(bus.receive("alice"))
    rate = MAIL / (time.perf_counter() - begin)
    return f"{MAIL} messages by 4 writers, read meanwhile: {rate:.0f} a second"


def stop(path):
    """From the request to COMPLETED, with a model that answers at once (from s16 on)."""
    team = Team(path)
    if not hasattr(team.lesson, "HANDSHAKE"):
        return "stop: this lesson has no handshake"
    taken = []
    for number in range(STOPS):
        team.spawn(f"t{number}")
        team.until_rest()
        begin = time.perf_counter()
        team.lesson.request_shutdown(team.lesson.LEAD, f"t{number}")
        team.until_rest()
        taken.append((time.perf_counter() - begin) * 1000)
    return f"request_shutdown to COMPLETED: {middle_and_worst(taken)}"


def crowd(path):
    """Many teammates stopped at once (from s16 on)."""
    team = Team(path)
    if not hasattr(team.lesson, "HANDSHAKE"):
        return "crowd: this lesson has no handshake"
    for number in range(CROWD):
        team.spawn(f"t{number}")
    team.until_rest()
    begin = time.perf_counter()
    for number in range(CROWD):
        team.lesson.request_shutdown(team.lesson.LEAD, f"t{number}")
    team.until_rest()
    taken = time.perf_counter() - begin
    team.lesson.consume_lead_inbox()
    states = {member.state for member in team.lesson.TEAM.values()}
    statuses = {state.status for state in team.lesson.pending_requests.values()}
    return f"{CROWD} teammates stopped at once: {taken:.2f} s, {states}, requests {statuses}"


def claim(path):
    """From create_task to the next model call of who is idle (from s17 on)."""
    team = Team(path)
    if not hasattr(team.lesson, "create_task"):
        return "claim: this lesson has no board"
    team.lesson.MAX_REMINDERS = 0            # the model only says "ok": the task goes back at once
    team.spawn("alice")
    taken = []
    for number in range(TASKS):
        team.until_rest()
        team.heard.clear()
        begin = time.perf_counter()
        team.lesson.create_task(team.lesson.LEAD, f"task {number}")
        team.heard.wait()
        taken.append((time.perf_counter() - begin) * 1000)
    return (f"create_task to next model call: {middle_and_worst(taken)}, "
            f"the first {taken[0]:.1f} ms, the last with {TASKS} tasks {taken[-1]:.1f} ms")


def board(path):
    """The board itself: claim and complete, by one thread."""
    lesson = Team(path).lesson
    if not hasattr(lesson, "create_task"):
        return "board: this lesson has no board"
    for number in range(TASKS):
        lesson.create_task(lesson.LEAD, f"task {number}")
    begin = time.perf_counter()
    for number in range(TASKS):
        lesson.claim_task(lesson.LEAD, str(number + 1))
        lesson.complete_task(lesson.LEAD, str(number + 1))
    rate = TASKS / (time.perf_counter() - begin)
    return f"{TASKS} tasks claimed and completed, one by one: {rate:.0f} a second"


def prompt(path):
    """From the start of Python to the prompt, on a warm disk."""
    taken = []
    environment = {**os.environ, "ANTHROPIC_API_KEY": "local"}
    for _ in range(STARTS):
        with tempfile.TemporaryDirectory() as folder:
            begin = time.perf_counter()
            process = subprocess.Popen([sys.executable, path, "--offline"], cwd=folder,
                                       env=environment, stdin=subprocess.PIPE,
                                       stdout=subprocess.PIPE)
            seen = b""
            while not re.search(rb"lead> $", seen):
                seen += os.read(process.stdout.fileno(), 4096)
            taken.append((time.perf_counter() - begin) * 1000)
            process.communicate(b"q\n")
    return f"the prompt appears after: {middle_and_worst(taken)}"


def demo(path):
    """The whole demo."""
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        done = subprocess.run([sys.executable, path, "--demo"], cwd=folder, capture_output=True)
        return f"--demo: exit {done.returncode} after {time.perf_counter() - begin:.1f} s"


MEASUREMENTS = {function.__name__: function for function in (
    wake, idle, mail, stop, crowd, claim, board, prompt, demo)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="|".join(MEASUREMENTS))
    parser.add_argument("--lesson", default=ROOT / "s17_autonomous_agents" / "code.py", type=Path)
    options = parser.parse_args()
    if unknown := set(options.names) - set(MEASUREMENTS):
        parser.error(f"There is no measurement {', '.join(unknown)}.")
    for name in options.names or MEASUREMENTS:
        print(MEASUREMENTS[name](options.lesson.resolve()), flush=True)
    os._exit(0)          # the teammates rest for ever


if __name__ == "__main__":
    main()
