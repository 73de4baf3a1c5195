"""What the tests share: a lesson loaded fresh, a scripted model behind HTTP, waits with a limit."""

import concurrent.futures
import contextlib
import functools
import importlib.util
import io
import itertools
import os
import signal
import ssl
import sys
import threading
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LESSONS = {path.parent.name[:3]: path for path in sorted(ROOT.glob("s1*_*/code.py"))}
LIMIT = 20          # seconds that a test waits for a condition before it fails
COUNT = itertools.count()
POSIX = pytest.mark.skipif(os.name == "nt", reason="it speaks to a POSIX system")

# A shell that runs the tests in the background makes them, and what they start, deaf to Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)

# No test speaks TLS, and to load the machine's certificates takes 20 ms for each client.
ssl.SSLContext.load_verify_locations = lambda *_, **__: None

sys.path.append(str(ROOT / "tools"))
from offline_model import as_blocks, call, player, serve, text  # noqa: E402


def pytest_addoption(parser):
    parser.addoption("--lesson", action="append", default=[], metavar="s15=PATH",
                     help="run a lesson's tests on another implementation")


def pytest_configure(config):
    """A mistyped --lesson would test the original and say that all is well."""
    for option in config.getoption("--lesson"):
        name, _, path = option.partition("=")
        if name not in LESSONS or not Path(path).is_file():
            raise pytest.UsageError(f"--lesson {option}: say {'|'.join(LESSONS)}=PATH of a file.")
    config.addinivalue_line(       # no thread may end with a traceback
        "filterwarnings", "error::pytest.PytestUnhandledThreadExceptionWarning")


def pytest_collection_modifyitems(items):
    """Put the tests that look at EARLY sessions last, and first one other test of each module.

    Such a session is a process that loads the SDK, which takes a second. `early` begins it with
    its module's first test, and it is through, or waits, when somebody looks.
    """
    early = [item for item in items if hasattr(item.module, "EARLY")]
    last = [item for item in early if {*item.module.EARLY} & {*item.fixturenames}]
    first = {item.module: item for item in reversed(early) if item not in last}.values()
    items.sort(key=lambda item: (item not in first, item in last))


@pytest.fixture(scope="module", autouse=True)
def early(request):
    """Begin the sessions that a module calls EARLY, as far as tests of this run use them."""
    used = {name for item in request.session.items for name in item.fixturenames}
    for name in filter(used.__contains__, getattr(request.module, "EARLY", ())):
        request.getfixturevalue(name)


@pytest.fixture(scope="session")
def helpers():
    """Two pairs of hands for sessions that need nobody at the keyboard."""
    with concurrent.futures.ThreadPoolExecutor(max_workers=2) as helpers:
        yield helpers


def lesson_path(config, name):
    others = dict(option.split("=", 1) for option in config.getoption("--lesson"))
    return Path(others.get(name, LESSONS[name])).resolve()


@functools.cache
def code_of(path):
    return compile(path.read_text(encoding="utf-8"), path, "exec")


def load(path):
    """A lesson as a fresh module: every test has its own bus, team and client."""
    spec = importlib.util.spec_from_file_location(f"lesson_{next(COUNT)}", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    exec(code_of(path), module.__dict__)
    del sys.modules[spec.name]                  # a thousand of them would only fill the memory
    return module


def until(condition, limit=LIMIT):
    """Wait until the condition holds; what it returned. Fails after `limit` seconds."""
    end = time.monotonic() + limit
    while not (value := condition()):
        assert time.monotonic() < end, "the condition did not come to hold"
        time.sleep(0.002)
    return value


def words_of(request):
    """Everything a request says to the model, as one text."""
    return repr(request["messages"])


def blocks_of(messages, kind):
    """The blocks of a kind in messages."""
    return [block for message in messages for block in as_blocks(message["content"])
            if block["type"] == kind]


def results_of(request):
    """The results of tools that a request brings for the model's last answer."""
    messages = request["messages"]
    answers = [number for number, message in enumerate(messages) if message["role"] != "user"]
    return blocks_of(messages[answers[-1]:], "tool_result")


def asleep(thread):
    """Whether a thread rests on a condition."""
    frame = sys._current_frames().get(thread.ident)
    return frame is not None and frame.f_code.co_filename == threading.__file__


class Task(threading.Thread):
    """A call in a thread of its own."""

    def __init__(self, function, *args, **options):
        super().__init__(daemon=True)
        self.call, self.value, self.error = lambda: function(*args, **options), None, None
        self.start()

    def run(self):
        try:
            self.value = self.call()
        except BaseException as error:
            self.error = error

    def result(self):
        """What the call returned or raised, as soon as it has."""
        self.join(LIMIT)
        assert not self.is_alive(), "the call did not return"
        if self.error:
            raise self.error
        return self.value


class Held:
    """An answer of the model that waits until it is let go."""

    def __init__(self, answer):
        self.answer, self.asked, self.free = answer, threading.Event(), threading.Event()

    def __call__(self, request):
        self.asked.set()
        self.free.wait(LIMIT)
        return self.answer(request) if callable(self.answer) else self.answer


class Lifeline:
    """A pipe that a command and its children hold: it breaks when the last of them is dead."""

    def __init__(self, path):
        os.mkfifo(path)
        self.end = os.open(path, os.O_RDONLY | os.O_NONBLOCK)

    def held(self):
        try:
            return os.read(self.end, 1) != b""
        except BlockingIOError:                 # somebody could write and has not
            return True


class Script:
    """A policy that gives each agent its next answer from a list; then it says "ok".

    An answer may be a function of the request.
    """

    def __init__(self):
        self.answers = {}        # agent -> what is left of its list
        self.calls = {}          # agent -> its requests, as they came

    def __call__(self, request):
        first = request["system"].split(",")[0]
        agent = first.split("'")[1] if first.startswith("You are '") else "lead"
        self.calls.setdefault(agent, []).append(request)
        left = self.answers.get(agent, [])
        answer = left.pop(0) if left else "ok"
        return answer(request) if callable(answer) else answer


class Stage:
    """A lesson with a scripted model behind a real server, in a workspace of its own."""

    def __init__(self, module, workspace):
        self.script = Script()
        self.server = serve(self.script)
        self.lesson, self.workspace, self.held = module, workspace, []

    def __getattr__(self, name):
        return getattr(self.lesson, name)

    def play(self, **answers):
        self.script.answers.update({agent: list(given) for agent, given in answers.items()})

    def calls(self, agent):
        return self.script.calls.get(agent, [])

    def spawn(self, name, *answers, prompt="Begin."):
        """A teammate that gives these answers, as the lead's tool starts it."""
        if answers:
            self.play(**{name: answers})
        self.lesson.spawn_teammate(self.lesson.LEAD, name, "tester", prompt)
        return self.lesson.TEAM[name]

    def hold(self, answer):
        """An answer that waits until it is let go, at the latest when the test is over."""
        self.held.append(Held(answer))
        return self.held[-1]

    def say(self, words):
        """The person's words to the lead, and the lead's turn."""
        self.lesson.LEAD.history.append({"role": "user", "content": words})
        self.lesson.LEAD.turn()

    def mail(self, msg_type=None):
        """All that was ever sent to the lead."""
        messages = self.lesson.BUS.messages("lead", 0)[0]
        return [msg for msg in messages if msg_type in (None, msg["type"])]

    def until_state(self, name, state):
        return until(lambda: self.lesson.TEAM[name].state == state and self.lesson.TEAM[name])


@pytest.fixture
def typed(monkeypatch):
    """A function that types lines, "^C" as what it says; then the input ends."""
    class Keyboard(io.StringIO):
        def readline(self, *args):
            line = super().readline(*args)
            if line == "^C\n":
                raise KeyboardInterrupt
            return line

    return lambda *lines: monkeypatch.setattr(
        "sys.stdin", Keyboard("".join(f"{line}\n" for line in lines)))


@pytest.fixture
def quick_retries(monkeypatch):
    """The SDK repeats a request without its usual pause."""
    monkeypatch.setattr("anthropic._base_client.INITIAL_RETRY_DELAY", 0.001, raising=False)


@pytest.fixture
def lesson(request, tmp_path):
    """The lesson that the test's module names as LESSON, in a workspace, without a model."""
    module = load(lesson_path(request.config, request.module.LESSON))
    module.use_workspace(tmp_path / "workspace")
    handler = signal.getsignal(signal.SIGINT)
    yield module
    with contextlib.suppress(OSError):
        module.BUS.close("lead")                    # now the watch has nobody to watch for
    signal.signal(signal.SIGINT, handler)           # leave() takes it away


@contextlib.contextmanager
def on_stage(module, workspace, monkeypatch):
    """A lesson on a stage, which is cleared at the end. No request may be refused."""
    stage = Stage(module, workspace)
    for name in ("ANTHROPIC_AUTH_TOKEN", "MODEL_ID", "ANTHROPIC_MODEL", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ANTHROPIC_BASE_URL", stage.server.url)
    monkeypatch.setenv("ANTHROPIC_API_KEY", "local")
    yield stage
    for held in stage.held:
        held.free.set()
    for member in module.living():
        member.stop()
    until(lambda: all(member.ended for member in module.TEAM.values()))
    threading.Thread(target=stage.server.close, daemon=True).start()     # 50 ms; nobody waits
    assert stage.server.refusals == []


@pytest.fixture
def stage(lesson, tmp_path, monkeypatch):
    """The lesson on a stage of its own."""
    with on_stage(lesson, tmp_path / "workspace", monkeypatch) as stage:
        yield stage


@pytest.fixture
def troupe(stage):
    """A function that says something to a lead whom the player plays, until the team is at rest."""
    stage.server.policy = player

    def say(words):
        stage.say(words)
        Task(stage.until_rest).result()
        return stage
    return say
