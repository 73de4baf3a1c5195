"""The offline player leads a team through both protocols, in English and Chinese."""

import os
import subprocess
import sys

import pytest
from conftest import LESSONS, lesson_path
from offline_model import player

LESSON = "s16"
EARLY = ("demos",)


def requests(stage, type):
    return [state for state in stage.pending_requests.values() if state.type == type]


@pytest.mark.parametrize("words, name", [
    ("Spawn alice as a backend dev. Ask her to create a file. Then request her shutdown.", "alice"),
    ("Spawn dora as a writer. Ask her to create a file called a.txt, then shut her down.", "dora"),
    ("Spawn eve as a tester and ask her to create a file. Ask eve to shut down.", "eve"),
    ("派生 alice 担任后端开发，让她创建一个文件，然后请求她关机。", "alice"),
    ("派生小明担任测试，让他创建一个文件。然后让小明关机。", "小明"),
])
def test_work_asked_for_in_the_same_breath_as_the_stop_is_done_first(troupe, words, name):
    stage = troupe(words)
    assert stage.TEAM[name].state == "COMPLETED"
    assert stage.HANDSHAKE.status(name).name == "COMPLETED"
    assert [state.status for state in requests(stage, "shutdown")] == ["approved"]
    assert [path for path in stage.workspace.iterdir() if path.is_file()]


@pytest.mark.parametrize("words, name", [
    ("Spawn bob with a refactoring task. Have him submit a plan first. Then review and approve it.",
     "bob"),
    ("Spawn finn as a developer with a refactoring task. Let him submit a plan first, then approve "
     "it.", "finn"),
    ("派生小明做重构任务，让他先提交计划，然后审阅并批准。", "小明"),
    ("派生 bob 做重构任务。让 bob 先提交一个计划。然后审核并通过他的计划。", "bob"),
])
def test_the_lead_decides_a_plan_when_it_was_told_to(troupe, words, name):
    stage = troupe(words)
    [plan] = requests(stage, "plan_approval")
    assert (plan.sender, plan.status) == (name, "approved")
    assert (stage.workspace / "refactoring.md").exists()


@pytest.mark.parametrize("words, name, prompt", [
    ("Spawn bob as a dev to write the parser. Require a plan.", "bob",
     "Submit a plan first. Write the parser."),
    ("Spawn bob with a refactoring task, plan required. Approve his plan.", "bob",
     "Submit a plan first. Do the refactoring task."),
    ("Spawn carol as a dev to refactor login.py; she must submit a plan first. Approve it.",
     "carol", "Submit a plan first. Refactor login.py."),
    ("派生 bob 做重构任务，先交计划，然后批准。", "bob", "先提交计划。 做重构任务。"),
    ("派生 bob 做重构任务。需要先提交计划。", "bob", "先提交计划。 做重构任务。"),
    ("派生小红。让她重构 login.py；她必须先提交计划。", "小红", "先提交计划。 重构 login.py。"),
])
def test_a_plan_is_required_however_it_is_said_and_the_task_stays(
        troupe, typed, words, name, prompt):
    typed("y")
    stage = troupe(words)
    [plan] = requests(stage, "plan_approval")
    assert (plan.sender, plan.status) == (name, "approved")
    assert "submit_plan" in repr(stage.TEAM[name].history) and prompt in repr(
        stage.TEAM[name].history[0])
    if "parser" in words:
        assert plan.payload.startswith("Title: Write the parser")


@pytest.mark.parametrize("words, stopped", [
    ("Spawn alice as a dev and bob as a tester. Ask alice to create a.txt. Then stop her.",
     ["alice"]),
    ("Spawn otto as a tester and roland as a writer. Stop otto.", ["otto"]),
    ("Spawn ines. Please shut down ines now.", ["ines"]),
    ("派生 alice 和 bob。让 alice 创建 a.txt。然后请求她关机。", ["alice"]),
    ("派生小李和小王。停掉小李。", ["小李"]),
    ("派生小李和小王。把小王关掉。", ["小王"]),
    ("派生小李、小王和 eve。让小李和 eve 都下班。", ["小李", "eve"]),
    ("派生 alice 和 bob。全部关停。", ["alice", "bob"]),
    ("Spawn alice and bob. Stop the team.", ["alice", "bob"]),
    ("Spawn alice, bob and eve. Ask alice and eve to stop.", ["alice", "eve"]),
    ("Spawn alice and bob. Dismiss bob.", ["bob"]),
])
def test_who_is_meant_by_a_stop_is_the_one_who_was_named_last(troupe, words, stopped):
    stage = troupe(words)
    assert [name for name, member in stage.TEAM.items() if member.state == "COMPLETED"] == stopped


@pytest.mark.parametrize("words, roles", [
    ("Spawn alice and bob as testers. Ask alice and bob to create a.txt.",
     {"alice": "tester", "bob": "tester"}),
    ("Spawn alice (backend) and bob (frontend). Ask alice and bob to create a.txt.",
     {"alice": "backend", "bob": "frontend"}),
    ("派生 alice 和 bob。让 alice 和 bob 创建 a.txt。", {"alice": "助手", "bob": "助手"}),
    ("派生 alice 和 bob 担任测试。让 alice 和 bob 创建 a.txt。", {"alice": "测试", "bob": "测试"}),
])
def test_what_is_said_of_several_holds_for_each(troupe, words, roles):
    stage = troupe(words)
    assert {name: member.role for name, member in stage.TEAM.items()} == roles
    assert all("a.txt" in msg["content"] for msg in stage.mail("result"))
    assert {msg["from"] for msg in stage.mail("result")} == set(roles)


@pytest.mark.parametrize("words", ["Review bob's plan and approve it.", "审阅并批准他的计划。"])
def test_the_lead_decides_the_newest_plan_whoever_has_decided_those_before(troupe, typed, words):
    stage, mail = troupe("Spawn bob."), ""
    for number in 1, 2:
        mail += stage.tagged("message", "Title: Parser", **{
            "from": "bob", "type": "plan_approval_request", "request_id": f"req_00000{number}"})
    request = {**stage.server.requests[-1], "messages": [
        {"role": "user", "content": mail}, {"role": "assistant", "content": "Two plans came."},
        {"role": "user", "content": words}]}
    [step] = player({**request, "tools": [{"name": "review_plan"}],
                     "system": "You are the lead of a team."})
    assert (step["name"], step["input"]["request_id"]) == ("review_plan", "req_000002")


@pytest.mark.parametrize("words, why", [
    ("Spawn bob with a refactoring task. Have him submit a plan first. Then reject it because the "
     "tests are missing.", "the tests are missing"),
    ("派生小明做重构任务，让他先提交计划。然后拒绝它，因为没有测试。", "没有测试"),
])
def test_a_plan_that_the_lead_rejects_comes_again_and_then_the_person_decides(
        troupe, typed, words, why):
    typed("y")
    stage = troupe(words)
    first, second = requests(stage, "plan_approval")
    assert (first.status, first.feedback) == ("rejected", why)
    assert second.status == "approved" and why in second.payload


@pytest.mark.parametrize("words", [
    "Spawn bob with a refactoring task. Have him submit a plan first.",
    "派生小明做重构任务，让他先提交计划。",
])
def test_a_plan_that_the_lead_was_not_told_to_decide_is_put_before_the_person(troupe, typed, words):
    typed("n: first the tests", "y")
    stage = troupe(words)
    first, second = requests(stage, "plan_approval")
    assert (first.status, first.feedback, second.status) == (
        "rejected", "first the tests", "approved")
    assert "first the tests" in (stage.workspace / "refactoring.md").read_text("utf-8")


@pytest.mark.parametrize("spawn, words, told", [
    ("Spawn bob.", "Ask bob to submit a plan.",
     "I have asked bob for a plan: Submit a plan."),
    ("派生小明。", "让小明提交一个计划。", "已请 小明 提交计划：提交一个计划。"),
])
def test_a_plan_that_is_asked_of_one_at_work_is_told_with_its_task(
        troupe, typed, capsys, spawn, words, told):
    typed("y")
    troupe(spawn)
    stage = troupe(words)
    assert len(requests(stage, "plan_approval")) == 1 and told in capsys.readouterr().out


def test_a_whole_session_with_two_teammates_follow_up_orders_a_plan_and_two_stops(troupe, typed):
    typed("y")
    troupe("派生一个 researcher 调查编译模块的性能瓶颈，再派生 reviewer 担任审查员。")
    stage = troupe("让 researcher 研究符号表的缓存策略；让 reviewer 提个优化计划。")
    [plan] = requests(stage, "plan_approval")
    assert (plan.sender, plan.status) == ("reviewer", "approved")
    stage.obey("/team stop researcher")
    stage.obey("/team stop reviewer")
    stage.until_rest()
    assert {member.state for member in stage.TEAM.values()} == {"COMPLETED"}
    assert {msg["from"] for msg in stage.mail("farewell")} == {"researcher", "reviewer"}
    assert {state.status for state in stage.pending_requests.values()} == {"approved"}


@pytest.fixture(scope="session")
def demos(request, helpers, tmp_path_factory):
    """The demos of all lessons."""
    environment = {name: value for name, value in os.environ.items() if "ANTHROPIC_" not in name}
    return {lesson: helpers.submit(
        subprocess.run, [sys.executable, lesson_path(request.config, lesson), "--demo"],
        env=environment, cwd=tmp_path_factory.mktemp(lesson), stdin=subprocess.DEVNULL,
        capture_output=True, encoding="utf-8", timeout=60) for lesson in LESSONS}


@pytest.mark.parametrize("lesson", LESSONS)
def test_the_demo_ends_as_the_chapter_says(demos, lesson):
    demo = demos[lesson].result()
    output = demo.stdout
    assert (demo.returncode, demo.stderr) == (0, "")
    for line in output.splitlines():            # what is asked for under an id is answered under it
        if "_request req_" in line:
            assert line.split(" — ")[0].split("_request ")[1] in "".join(
                answer for answer in output.splitlines() if "_response req_" in answer)
