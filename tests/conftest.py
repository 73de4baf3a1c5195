"""What the tests share: a lesson loaded fresh, a scripted model behind real HTTP, waiting with a limit."""

import importlib.util
import itertools
import sys
import threading
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LESSONS = {path.parent.name[:3]: path for path in sorted(ROOT.glob("s1*_*/code.py"))}
LIMIT = 20          # seconds that a test waits for a condition before it fails
COUNT = itertools.count()

sys.path.append(str(ROOT / "tools"))
from offline_model import call, serve, text  # noqa: E402


def pytest_addoption(parser):
    parser.addoption("--lesson", action="append", default=[], metavar="s15=PATH",
                     help="run a lesson's tests on another implementation")


def lesson_path(config, name):
    others = dict(option.split("=", 1) for option in config.getoption("--lesson"))
    return Path(others.get(name, LESSONS[name])).resolve()


def load(path):
    """A lesson as a fresh module: every test has its own bus, team and client."""
    spec = importlib.util.spec_from_file_location(f"lesson_{next(COUNT)}", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
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
        self.lesson, self.workspace = module, workspace

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

    def mail(self, msg_type=None):
        """All that was ever sent to the lead."""
        messages = self.lesson.BUS.messages("lead", 0)[0]
        return [msg for msg in messages if msg_type in (None, msg["type"])]

    def until_state(self, name, state):
        return until(lambda: self.lesson.TEAM[name].state == state and self.lesson.TEAM[name])


@pytest.fixture
def stage(request, tmp_path, monkeypatch):
    """The lesson that the test's module names as LESSON, on a stage. No request may be refused."""
    stage = Stage(load(lesson_path(request.config, request.module.LESSON)), tmp_path / "workspace")
    for name in ("ANTHROPIC_AUTH_TOKEN", "MODEL_ID", "ANTHROPIC_MODEL", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ANTHROPIC_BASE_URL", stage.server.url)
    monkeypatch.setenv("ANTHROPIC_API_KEY", "local")
    stage.lesson.use_workspace(stage.workspace)
    yield stage
    for member in stage.lesson.living():
        member.stop()
    until(lambda: all(member.ended for member in stage.lesson.TEAM.values()))
    stage.server.close()
    assert stage.server.refusals == []
