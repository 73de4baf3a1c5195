"""A lesson as a person runs it: a process of its own, keys, and a screen to look at."""

import fcntl
import os
import pty
import re
import subprocess
import sys
import termios
import threading
import time

LIMIT = 30      # seconds that a test waits for something to appear, or for a process to end

# Python makes the pty the controlling terminal, so that Ctrl-C is a signal, and becomes the lesson.
ENTER = ("import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
         "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])")
ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")


class Terminal:
    """A running Python program, the keyboard before it and everything it has shown."""

    def __init__(self, *arguments, folder, environment):
        self.keyboard, screen = pty.openpty()
        termios.tcsetwinsize(screen, (50, 200))      # wide: no line of a test is broken in two
        self.process = subprocess.Popen(
            [sys.executable, "-ISc", ENTER, *map(str, arguments)], stdin=screen, stdout=screen,
            stderr=screen, cwd=folder, env=environment, start_new_session=True)
        os.close(screen)
        self.raw = b""             # what was shown, byte for byte
        self.seen = 0              # how far in `screen` the test has followed
        self.open = True
        self.changed = threading.Condition()
        self.watcher = threading.Thread(target=self.watch, daemon=True)
        self.watcher.start()

    def watch(self):
        """Collect what is shown until the program has ended; nobody waits for a full screen."""
        while self.open:
            try:
                data = os.read(self.keyboard, 65536)
            except OSError:        # how Linux says that nobody holds the other side any more
                data = b""
            with self.changed:
                self.raw += data
                self.open = data != b""
                self.changed.notify_all()

    @property
    def screen(self):
        """All that was shown, without colours and the like."""
        return ESCAPES.sub("", self.raw.decode("utf-8", "replace")).replace("\r\n", "\n")

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
        self.press("\x03")

    def end_of_input(self):
        """Press Ctrl-D."""
        self.press("\x04")

    def until(self, condition, what):
        """Wait until the screen is as it should be; what the condition returned."""
        with self.changed:
            self.changed.wait_for(lambda: condition() or not self.open, LIMIT)
            value = condition()
        assert value, f"{what}. The screen since then:\n{self.screen[self.seen:]}"
        return value

    def expect(self, *texts):
        """Wait until the texts have appeared, each behind the one before; what was shown by then."""
        start = self.seen
        for text in texts:
            self.until(lambda: text in self.screen[self.seen:], f"{text!r} did not appear")
            self.seen = self.screen.index(text, self.seen) + len(text)
        return self.screen[start:self.seen]

    def expect_line(self, text):
        """Wait until the last line is this one."""
        self.until(lambda: self.line == text, f"the last line is {self.line!r}, not {text!r}")

    def exit_status(self):
        """Wait for the end of the program."""
        status = self.process.wait(LIMIT)
        self.watcher.join(LIMIT)
        return status

    def end(self):
        """Close the terminal, whatever still runs in it."""
        self.process.kill()
        self.process.wait()
        self.watcher.join(LIMIT)
        os.close(self.keyboard)
