"""Words that the tests of the protocols share: members, requests, mail typed by hand."""

import copy
import json
import threading

from conftest import LIMIT, Task

OPENED_BY = {"shutdown": ("lead", "alice"), "plan_approval": ("alice", "lead")}


def member(lesson, name="alice"):
    """A teammate whose thread was not started: the test takes its steps."""
    lesson.BUS.open(name)
    lesson.TEAM[name] = lesson.Teammate(name, "tester")
    return lesson.TEAM[name]


def on_record(lesson, kind, request_id, status="pending", name="alice"):
    """A request of the lead to a teammate, or of a teammate to the lead, as it stands on record."""
    sides = [name if side == "alice" else side for side in OPENED_BY[kind]]
    state = lesson.ProtocolState(request_id, kind, *sides, status, "Title: as it was", 1.0)
    lesson.pending_requests[request_id] = state
    return state


def latest(lesson, kind, name="alice"):
    """The latest request of a kind between a teammate and the lead."""
    return [state for state in list(lesson.pending_requests.values())
            if state.type == kind and name in (state.sender, state.target)][-1]


def everything(lesson):
    """All that a refusal leaves as it is: requests, handshakes, gates, unread mail, files."""
    with lesson.LOCK:
        return (copy.deepcopy(lesson.pending_requests),
                {name: (lesson.HANDSHAKE.status(name), member.plan)
                 for name, member in lesson.TEAM.items()},
                {name: lesson.BUS.messages(name) for name in lesson.BUS.read_to},
                {path: path.read_bytes() for path in lesson.WORKSPACE.rglob("*") if path.is_file()})


def message(sender, to, kind, content="", **metadata):
    """A message as the bus carries it."""
    return {"from": sender, "to": to, "content": content, "type": kind, "ts": 1.0,
            "metadata": metadata}


def by_hand(lesson, *messages):
    """Messages typed into the receivers' files, past the bus."""
    lesson.BUS.folder.mkdir(parents=True, exist_ok=True)
    for msg in messages:
        with open(lesson.BUS.folder / f"{msg['to']}.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(msg) + "\n")


def come_to_rest(stage):
    """Look after what waits until the team is at rest, but not for ever."""
    Task(stage.until_rest).result()


def at_once(*calls):
    """What these calls return when they are made at one moment."""
    start = threading.Barrier(len(calls))

    def begin(call):
        start.wait(LIMIT)
        return call()

    return [task.result() for task in [Task(begin, call) for call in calls]]
