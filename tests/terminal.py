"""A lesson as a person runs it: a process of its own, keys, and a screen to look at. POSIX only."""

import fcntl
import os
import pty
import re
import subprocess
import sys
import termios
import threading
from pathlib import Path

from conftest import LIMIT, Held, Script, serve, until

PROMPT = "lead> "
QUESTION = "[y] yes"
NOBODY = "http://127.0.0.1:9"       # where no server listens

# Python makes the pty the controlling terminal, so that Ctrl-C is a signal, and becomes the lesson.
ENTER = ("import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
         "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])")
ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")


class Model:
    """A scripted model behind real HTTP, for one process."""

    def __init__(self, **answers):
        self.script, self.held = Script(), []
        self.server = serve(self.script)
        self.play(**answers)

    def play(self, **answers):
        """From now on the agents give these answers, and only new calls count."""
        self.script.calls.clear()
        self.script.answers.clear()
        self.script.answers.update({agent: list(given) for agent, given in answers.items()})

    def calls(self, agent):
        return self.script.calls.get(agent, [])

    def hold(self, answer):
        """An answer that waits until it is let go."""
        self.held.append(Held(answer))
        return self.held[-1]

    def let_go(self):
        for held in self.held:
            held.free.set()

    def end(self):
        """Let everything go and close the server."""
        self.let_go()
        threading.Thread(target=self.server.close, daemon=True).start()      # 50 ms; nobody waits


def surroundings(folder, url=NOBODY, **more):
    """An environment without a key, a language or the habits of the person who runs the tests."""
    where = {"ANTHROPIC_BASE_URL": url} if url else {}
    return {"PATH": os.environ["PATH"], "HOME": str(folder), "TERM": "xterm",
            "PYTHONDONTWRITEBYTECODE": "1", **where, **more}


def piped(lesson, typed, *options, folder, **environment):
    """A lesson that reads `typed` from a pipe and writes into files: status, output, errors."""
    folder.mkdir(exist_ok=True)
    with open(folder / "out.txt", "w+b") as out, open(folder / "err.txt", "w+b") as err:
        status = subprocess.run(
            [sys.executable, lesson, *options], input=typed, stdout=out, stderr=err, cwd=folder,
            env=surroundings(folder, **environment), timeout=LIMIT).returncode
    return status, *((folder / name).read_text("utf-8") for name in ("out.txt", "err.txt"))


def plain(raw):
    """What a screen shows as text, without colours and the like."""
    return ESCAPES.sub("", raw.decode("utf-8", "replace")).replace("\r\n", "\n")


def asleep(process):
    """Whether a process waits for something; taken for granted where no /proc tells."""
    stat = Path(f"/proc/{process.pid}/stat")
    return not stat.exists() or stat.read_text().rpartition(") ")[2].startswith(("S", "Z"))


class Terminal:
    """A running lesson, the keyboard before it, and everything that its screen has shown."""

    def __init__(self, lesson, *options, folder, model, **environment):
        self.folder, self.model = folder, model
        self.keyboard, screen = pty.openpty()
        termios.tcsetwinsize(screen, (50, 200))      # wide: no line of a test is broken in two
        modes = termios.tcgetattr(screen)
        modes[3] |= termios.NOFLSH                   # Ctrl-C throws away nothing that was printed
        termios.tcsetattr(screen, termios.TCSANOW, modes)
        self.process = subprocess.Popen(
            [sys.executable, "-ISc", ENTER, lesson, *options], stdin=screen, stdout=screen,
            stderr=screen, cwd=folder, env=surroundings(folder, model.server.url, **environment),
            start_new_session=True)
        os.close(screen)
        self.raw = b""             # what was shown, byte for byte
        self.lines = ""            # the same as text, but for the last line
        self.read = 0              # how much of `raw` stands in `lines`
        self.seen = 0              # how far in `screen` the test has followed
        self.open = True
        self.changed = threading.Condition()
        self.watcher = threading.Thread(target=self.watch, daemon=True)
        self.watcher.start()

    def watch(self):
        """Collect what is shown until the lesson has ended; it never waits for a full screen."""
        while self.open:
            try:
                data = os.read(self.keyboard, 65536)
            except OSError:        # so Linux says that nobody holds the other side any more
                data = b""
            with self.changed:
                self.raw += data
                end = self.raw.rfind(b"\n") + 1
                self.lines += plain(self.raw[self.read:end])
                self.read = max(self.read, end)
                self.open = data != b""
                self.changed.notify_all()

    @property
    def screen(self):
        """All that was shown, without colours and the like."""
        with self.changed:
            return self.lines + plain(self.raw[self.read:])

    @property
    def line(self):
        """What stands on the last line now."""
        return self.screen.rpartition("\n")[2].rpartition("\r")[2]

    def press(self, keys):
        os.write(self.keyboard, keys.encode() if isinstance(keys, str) else keys)

    def type(self, line=""):
        """Type a line and press Enter."""
        self.press(f"{line}\r")

    def press_ctrl_c(self):
        """Press Ctrl-C once the lesson waits for something.

        In the instant between showing a prompt and waiting for keys, readline would not notice it
        before the next key.
        """
        until(lambda: asleep(self.process))
        self.press("\x03")

    def end_of_input(self):
        """Press Ctrl-D."""
        self.press("\x04")

    def wait(self, condition, failure):
        """Wait until the screen is as it should be."""
        with self.changed:
            self.changed.wait_for(lambda: condition() or not self.open, LIMIT)
            assert condition(), f"{failure}. Since then:\n{self.screen[self.seen:]}"

    def expect(self, *texts):
        """Wait until the texts have appeared, one behind the other; what was shown by then."""
        start = self.seen
        for text in texts:
            self.wait(lambda: text in self.screen[self.seen:], f"{text!r} did not appear")
            self.seen = self.screen.index(text, self.seen) + len(text)
        return self.screen[start:self.seen]

    def expect_line(self, text):
        """Wait until this, and no more, stands on the last line."""
        self.wait(lambda: self.line == text, f"the last line is not {text!r}")

    def look(self, command):
        """What a command of the prompt shows."""
        self.type(command)
        self.expect(f"{command}\n")
        return self.expect(PROMPT).removesuffix(PROMPT)

    def exit_status(self):
        """Wait for the lesson's end, at which nobody may see a traceback."""
        status = self.process.wait(LIMIT)
        self.watcher.join(LIMIT)
        assert "Traceback" not in self.screen, self.screen
        return status

    def end(self):
        """Switch everything off, whatever still runs."""
        self.process.kill()
        self.process.wait()
        self.watcher.join(LIMIT)
        os.close(self.keyboard)
        self.model.end()
