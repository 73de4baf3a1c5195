"""The lesson as a person meets it: a process of its own, at a terminal and through pipes."""

import concurrent.futures
import contextlib
import itertools
import shutil
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from conftest import LIMIT, ROOT, Lifeline, call, lesson_path, results_of, text, until, words_of
from offline_model import ApiError, Raw

pytest.importorskip("termios", reason="a pseudo-terminal is a thing of POSIX")
from terminal import PROMPT, QUESTION, Model, Terminal, piped, surroundings  # noqa: E402

LESSON = "s15"
NOBODY = "http://127.0.0.1:9"       # where no server listens


@pytest.fixture(scope="module")
def path(request):
    return lesson_path(request.config, LESSON)


@pytest.fixture
def start(path, tmp_path):
    """A function that starts a lesson at a terminal; the end of the test ends it."""
    started = []

    def start(*options, lesson=path, **environment):
        started.append(Terminal(lesson, *options, folder=tmp_path, model=Model(), **environment))
        return started[-1]

    yield start
    for terminal in started:
        terminal.end()
        assert terminal.model.server.refusals == []


@pytest.fixture
def pipe(path, tmp_path):
    """A function that runs a lesson through pipes, without a model: status, output, errors."""
    def run(typed, *options, **environment):
        environment.setdefault("ANTHROPIC_BASE_URL", NOBODY)
        return piped(path, typed, *options, folder=tmp_path, **environment)
    return run


def copy_of_the_course(path, folder):
    """The lesson in a repository of its own, with the tools beside it."""
    lesson = folder / "s15_agent_teams" / "code.py"
    lesson.parent.mkdir(parents=True)
    (folder / "tools").symlink_to(ROOT / "tools")
    return shutil.copy(path, lesson)


def write_env(lesson, **settings):
    """The .env of a lesson's repository."""
    lines = [f"{name}={value}\n" for name, value in settings.items()]
    (lesson.parent.parent / ".env").write_text("".join(lines))


@pytest.fixture(scope="module")
def errands(path, tmp_path_factory):
    """Sessions that need nobody at the keyboard, two at a time."""
    home, models = tmp_path_factory.mktemp("errands"), []
    helpers = concurrent.futures.ThreadPoolExecutor(max_workers=2)

    def model(**answers):
        models.append(Model())
        models[-1].play(**answers)
        return models[-1]

    def errand(name, typed, *options, lesson=path, **more):
        return helpers.submit(piped, lesson, typed, *options, folder=home / name, **more)

    words = model(lead=["Heard.", "Heard.", spawn("alice"), "At work.", "SUMMARY",
                        run("echo ran > lead.txt"), "It did not run."],
                  alice=[run("echo ran > alice.txt"), "RESULT"])
    settings = model(lead=[run("echo ran > proof.txt"), "It ran."])
    unused = model()
    repository = copy_of_the_course(path, home / "course")
    write_env(repository, ANTHROPIC_BASE_URL=settings.server.url, MODEL_ID="of-the-file",
              ANTHROPIC_API_KEY="")
    yield SimpleNamespace(
        home=home, words_model=words, settings_model=settings, unused_model=unused,
        words=errand("words", "你好，ｙ\ncaf".encode() + b"\xff\xfe\nBegin.\ny\nRun it.",
                     model=words, LC_ALL="C"),
        unreachable=errand("unreachable", b"Hello.\n/help\nq\n", ANTHROPIC_BASE_URL=NOBODY),
        settings=errand("settings", b"Run it.\nq\n", "--yes", "--workdir", "../elsewhere",
                        lesson=repository, MODEL_ID="of-the-environment"),
        offline=errand("offline", b"Hello.\nq\n", "--offline", lesson=repository, model=unused,
                       ANTHROPIC_API_KEY="a key"))
    helpers.shutdown()
    for each in models:
        each.end()


@pytest.fixture(scope="module", autouse=True)
def early(request):
    """What takes long begins with the first test, if any test wants it."""
    for name in ("errands", "desks"):
        if any(name in item.fixturenames for item in request.session.items):
            request.getfixturevalue(name)


# ── A desk that tests share ──────────────────────────────────────────

@pytest.fixture(scope="module")
def desks(path, tmp_path_factory):
    """Terminals at which the model has answered once: the SDK takes a second to load.

    The next one loads while tests use the first.
    """
    ready = []

    def prepare():
        ready.append(Terminal(path, folder=tmp_path_factory.mktemp("desk"), model=Model()))
        ready[-1].type("Are you there?")

    prepare()
    yield SimpleNamespace(ready=ready, prepare=prepare)
    for terminal in ready:
        terminal.end()


@pytest.fixture
def desk(desks):
    """A lesson at its prompt with nobody at work. Tests share it as long as they leave it so."""
    if not desks.ready:
        desks.prepare()
    desk = desks.ready[0]
    if desk.seen == 0:
        desks.prepare()
        desk.expect("lead: ok", PROMPT)
    yield desk
    assert desk.model.server.refusals == []
    if not tidy(desk):
        desks.ready.remove(desk)
        desk.end()


def tidy(desk):
    """Leave the desk as the next test wants it. False if that cannot be done."""
    with contextlib.suppress(AssertionError, OSError):
        assert desk.open and desk.line == PROMPT
        desk.seen = len(desk.screen)
        for line in filter(lambda line: "[" in line, desk.look("/team list").splitlines()):
            if not line.endswith(("[STOPPED]", "[FAILED]")):
                desk.look(f"/team stop {line.partition(' ')[0]}")
        desk.model.let_go()
        desk.model.play()
        desk.look("")
        return True


def spawn(*names):
    """An answer of the lead that starts teammates."""
    return [call("spawn_teammate", name=name, role="tester", prompt="Begin.") for name in names]


def run(command):
    """An answer that runs a command."""
    return [call("bash", command=command)]


# A command that holds a pipe, and so does its child.
HOLD = "exec >{}; sleep 60 & echo; sleep 60"


def put_to_work(desk, **answers):
    """Teammates at work, and the person back at the prompt."""
    desk.model.play(lead=[spawn(*answers), "They are at work."], **answers)
    desk.type("Begin.")
    desk.expect("They are at work.")
    desk.press_ctrl_c()
    desk.expect(PROMPT)


def ask_through(desk, name, *answers):
    """A teammate whose answers follow; the person sees its question."""
    desk.model.play(lead=[spawn(name), "At work.", "That is all."], **{name: answers})
    desk.type("Begin.")
    desk.expect(name, QUESTION, "> ")


def still_there(desk):
    """The next words reach the model and its answer is shown."""
    desk.model.play(lead=["I am still there."])
    desk.type("Are you still there?")
    return desk.expect("I am still there.", PROMPT)


# ── Coming and going ─────────────────────────────────────────────────

def test_two_empty_lines_and_q_are_three_prompts_and_a_goodbye(pipe):
    status, output, errors = pipe(b"\n\nq\n")
    assert (status, output.count(PROMPT), errors) == (0, 3, "")
    assert "goodbye" in output.casefold()


@pytest.mark.parametrize("typed", [b"", b"\n", b"/help\n", b"/help", b"  ", b"/team stop \xff"])
def test_the_end_of_input_leaves_with_a_goodbye(pipe, typed):
    status, output, errors = pipe(typed)
    assert (status, errors) == (0, "")
    assert output.casefold().rstrip().endswith("goodbye.")


@pytest.mark.parametrize("typed", ["q", "exit", " Q ", "ｑ", "ＥＸＩＴ"])
def test_q_and_exit_leave_however_they_are_typed(pipe, typed):
    status, output, errors = pipe(f"{typed}\n/help\n".encode())
    assert (status, output.count(PROMPT), errors) == (0, 1, "")
    assert output.casefold().rstrip().endswith("goodbye.")


@pytest.mark.parametrize("leave", ["q\r", "exit\r", "\x04"], ids=["q", "exit", "Ctrl-D"])
def test_a_person_at_a_terminal_leaves_with_a_goodbye(start, leave):
    terminal = start()
    terminal.expect(PROMPT)
    terminal.press(leave)
    assert terminal.exit_status() == 0
    assert terminal.screen.casefold().rstrip().endswith("goodbye.")


@pytest.mark.parametrize("before, after", [
    (b"", b"/help\nq\n"), (b"/help\n", b"/help\nq\n"), (b"/help\n", b"q\n"), (b"/help\n", b""),
])
def test_an_output_that_nobody_reads_any_more_ends_the_lesson(path, tmp_path, before, after):
    environment = surroundings(tmp_path, ANTHROPIC_BASE_URL=NOBODY)
    pipes = {name: subprocess.PIPE for name in ("stdin", "stdout", "stderr")}
    with subprocess.Popen([sys.executable, path], cwd=tmp_path, env=environment, **pipes) as process:
        if before:
            process.stdin.write(before)
            process.stdin.flush()
            process.stdout.readline()        # like `| head -1`
        process.stdout.close()
        process.stdin.write(after)
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        process.wait(LIMIT)
        assert process.stderr.read() == b""


# ── Starting ─────────────────────────────────────────────────────────

def test_help_names_the_options_and_starts_nothing(pipe, tmp_path):
    status, output, errors = pipe(b"", "--help")
    assert (status, errors, PROMPT in output) == (0, "", False)
    assert all(option in output for option in ("--offline", "--demo", "--yes", "--workdir"))
    assert not (tmp_path / "workspace").exists()


@pytest.mark.parametrize("options, folder", [
    ([], "workspace"), (["--workdir", "else/where"], "else/where"),
    (["--workdir", "../outside"], "../outside"),
])
def test_the_workspace_is_made_on_start(pipe, tmp_path, options, folder):
    assert pipe(b"q\n", *options)[0] == 0
    assert (tmp_path / folder).is_dir()
    assert (tmp_path / "workspace").exists() == (folder == "workspace")


@pytest.mark.parametrize("options, in_its_place", [
    ([], "workspace"), (["--workdir", "taken"], "taken"), (["--workdir", "taken/below"], "taken"),
])
def test_a_workspace_that_cannot_be_made_is_one_sentence(pipe, tmp_path, options, in_its_place):
    (tmp_path / in_its_place).write_text("a file")
    status, output, errors = pipe(b"q\n", *options)
    assert (status != 0, output, errors.count("\n"), "Traceback" in errors) == (True, "", 1, False)
    assert in_its_place in errors
    assert (tmp_path / in_its_place).read_text() == "a file"


@pytest.mark.parametrize("environment, options, offline", [
    ({}, [], True),
    ({"ANTHROPIC_API_KEY": "", "ANTHROPIC_AUTH_TOKEN": "", "ANTHROPIC_BASE_URL": ""}, [], True),
    ({"ANTHROPIC_API_KEY": "a key"}, [], False),
    ({"ANTHROPIC_AUTH_TOKEN": "a token"}, [], False),
    ({"ANTHROPIC_BASE_URL": "http://127.0.0.1:9"}, [], False),
    ({"ANTHROPIC_API_KEY": "a key"}, ["--offline"], True),
    ({"ANTHROPIC_BASE_URL": "http://127.0.0.1:9"}, ["--offline"], True),
])
def test_the_offline_model_is_there_for_who_has_no_key(path, tmp_path, environment, options, offline):
    lesson = copy_of_the_course(path, tmp_path)
    write_env(lesson, ANTHROPIC_API_KEY="", ANTHROPIC_BASE_URL="", MODEL_ID="")
    status, output, errors = piped(lesson, b"q\n", *options, folder=tmp_path, **environment)
    assert (status, errors, "offline model" in output.casefold()) == (0, "", offline)


@pytest.mark.parametrize("environment, options", [({}, []), ({"ANTHROPIC_API_KEY": "k"}, ["--offline"])])
def test_a_lesson_copied_away_alone_says_which_variable_to_set(path, tmp_path, environment, options):
    alone = shutil.copy(path, tmp_path / "code.py")
    status, output, errors = piped(alone, b"q\n", *options, folder=tmp_path, **environment)
    assert (status != 0, output, "Traceback" in errors) == (True, "", False)
    assert "ANTHROPIC_API_KEY" in errors and "ANTHROPIC_BASE_URL" in errors


def test_colours_are_for_a_terminal_and_not_with_no_color(start, pipe):
    def shown(**environment):
        terminal = start(**environment)
        terminal.expect(PROMPT)
        terminal.look("/nosuch")
        return terminal.raw

    assert b"\x1b[" in shown()
    assert b"\x1b[" in shown(NO_COLOR="")            # set but empty: as the convention has it
    assert b"\x1b" not in shown(NO_COLOR="1")
    assert "\x1b" not in pipe(b"/nosuch\n")[1]


@pytest.mark.parametrize("language", [{}, {"LANG": "C"}, {"LC_ALL": "C"}, {"LANG": "C.UTF-8"}])
def test_chinese_can_be_typed_whatever_the_language(start, language):
    terminal = start(**language)
    terminal.expect(PROMPT)
    assert "/小明,你好" in terminal.look("／小明，你好")        # there is no such command


# ── Words ────────────────────────────────────────────────────────────

def test_results_come_to_the_lead_without_a_key_being_pressed(desk):
    first, last = desk.model.hold([call("write_file", path="a.txt", content="42")]), "RESULT-42"
    last = desk.model.hold(last)
    desk.model.play(lead=[spawn("alice"), "She is at work.", "SUMMARY"], alice=[first, last])
    desk.type("Let alice write a file.")
    desk.expect("spawn_teammate", "alice", "She is at work.")
    first.free.set()
    desk.expect("alice", "write_file", "a.txt")
    last.free.set()
    desk.expect("alice", "result", "RESULT-42", "SUMMARY", PROMPT)
    assert (desk.folder / "workspace/a.txt").read_text() == "42"
    assert "RESULT-42" in words_of(desk.model.calls("lead")[-1])


@pytest.mark.parametrize("words", [
    "你好，小明！请说“ｙｅｓ”　１２３", "  spaces  around  ", "emoji 🎉 é e\u0301", "y", "是", "quit",
])
def test_words_reach_the_model_as_they_are_typed(desk, words):
    desk.model.play()
    desk.type(words)
    desk.expect("lead: ok", PROMPT)
    last = desk.model.calls("lead")[-1]["messages"][-1]
    assert last == {"role": "user", "content": words}


# ── Commands ─────────────────────────────────────────────────────────

COMMANDS = ("/team", "/team list", "/team messages", "/team permissions", "/team stop", "/help")


def test_every_command_answers_before_anything_has_happened(pipe):
    lines = [*COMMANDS, "/team stop x", "/nosuch", "/"]
    status, output, errors = pipe("\n".join([*lines, "q", ""]).encode())
    assert (status, output.count(PROMPT), errors) == (0, len(lines) + 1, "")
    assert "No active teammate named 'x'" in output


@pytest.mark.parametrize("typed", ["/help", "／ｈｅｌｐ", "/HELP", "  /help  "])
def test_help_lists_the_commands(desk, typed):
    shown = desk.look(typed)
    assert all(command in shown for command in COMMANDS)


@pytest.mark.parametrize("typed", ["/nosuch", "/teamlist", "/team nosuch thing", "/", "／没有"])
def test_an_unknown_command_is_told_and_no_words_for_the_model(desk, typed):
    desk.model.play()
    assert desk.look(typed).strip()
    assert desk.model.calls("lead") == []


@pytest.mark.parametrize("typed", ["/team", "/team list", "／ｔｅａｍ", "/TEAM  List"])
def test_the_list_tells_who_is_there_in_which_state(desk, typed):
    held = desk.model.hold("done")
    desk.model.play(lead=[spawn("worker", "idler"), "They are at work.", "One is done."],
                    worker=[held], idler=["done"])
    desk.type("Begin.")
    desk.expect("They are at work.", "One is done.")
    desk.press_ctrl_c()
    desk.expect(PROMPT)
    shown = desk.look(typed)
    assert "worker [RUNNING]" in shown and "idler [IDLE]" in shown
    desk.look("/team stop worker")
    assert "worker [STOPPED]" in desk.look(typed)


def test_looking_at_messages_takes_none_away(desk):
    held = desk.model.hold("RESULT-5")
    put_to_work(desk, carol=[held])
    held.free.set()
    desk.expect("Waiting: 1 message(s)", PROMPT)
    for _ in range(2):
        shown = desk.look("/team messages")
        assert "carol -> lead: result" in shown and "RESULT-5" in shown and "unread" in shown
    desk.model.play(lead=["SUMMARY-5"])
    desk.type()
    desk.expect("RESULT-5", "SUMMARY-5", PROMPT)
    assert words_of(desk.model.calls("lead")[-1]).count("RESULT-5") == 1
    shown = desk.look("/team messages")
    assert "RESULT-5" in shown and "unread" not in shown


def test_the_last_twenty_messages_are_shown(desk):
    letters = [call("send_message", to="lead", content=f"letter-{n:02}.") for n in range(25)]
    desk.model.play(lead=[spawn("writer"), "At work.", "Read."], writer=[letters, "last"])
    desk.type("Begin.")
    desk.expect("At work.", PROMPT)
    shown = desk.look("/team messages")
    assert "letter-24." in shown and "letter-10." in shown and "letter-00." not in shown


def test_a_teammate_is_cut_off_in_the_midst_of_a_command(desk):
    lifeline = Lifeline(desk.folder / "workspace/cut")
    ask_through(desk, "dora", run(HOLD.format("cut")), "RESULT-OF-DORA")
    desk.type("y")
    until(lifeline.held)
    desk.press_ctrl_c()
    desk.expect(PROMPT)
    assert "dora [RUNNING]" in desk.look("/team list")
    assert "dora" in desk.look("/team stop dora")
    until(lambda: not lifeline.held())
    assert "dora [STOPPED]" in desk.look("/team list")
    assert len(desk.model.calls("dora")) == 1
    assert "RESULT-OF-DORA" not in desk.look("/team messages")


@pytest.mark.parametrize("name, typed", [
    ("eve", "/team stop EVE"), ("小红", "/team stop 小红"), ("Eva", "／team　stop　Ｅｖａ"),
    ("Ｅva", "/team stop Ｅva"), ("straße", "/team stop STRASSE"),
])
def test_a_name_to_stop_is_found_however_it_is_typed(desk, name, typed):
    put_to_work(desk, **{name: [desk.model.hold("late")]})
    desk.look(typed)
    assert f"{name} [STOPPED]" in desk.look("/team list")


def test_an_unknown_name_to_stop_lists_who_is_there(desk):
    put_to_work(desk, fay=[desk.model.hold("late")])
    shown = desk.look("/team stop nobody")
    assert "No active teammate named 'nobody'" in shown and "fay" in shown
    assert "fay [RUNNING]" in desk.look("/team list")


# ── Permission questions ─────────────────────────────────────────────

names = (f"asker{number}" for number in itertools.count())


@pytest.mark.parametrize("answer, runs", [
    ("y", True), (" YES ", True), ("ｙ", True), ("是", True), ("a", True), ("总是", True),
    ("n", False), ("No", False), ("ｎ", False), ("否", False), ("d", False), ("从不", False),
])
def test_a_command_runs_only_if_the_person_allows_it(desk, answer, runs):
    name = next(names)
    ask_through(desk, name, run(f"echo ran > {name}"), "RESULT")
    assert not (desk.folder / "workspace" / name).exists()
    desk.type(answer)
    desk.expect("RESULT", "That is all.", PROMPT)
    assert (desk.folder / "workspace" / name).exists() == runs
    [result] = results_of(desk.model.calls(name)[-1])
    assert bool(result.get("is_error")) != runs


@pytest.mark.parametrize("nonsense", ["maybe", "", "yy", "/team", "q", "y n", "可能"])
def test_what_is_no_answer_is_asked_again(desk, nonsense):
    name = next(names)
    ask_through(desk, name, run(f"echo ran > {name}"), "RESULT")
    desk.type(nonsense)
    desk.expect(QUESTION, "> ")
    assert not (desk.folder / "workspace" / name).exists()
    desk.type("y")
    desk.expect("RESULT", "That is all.", PROMPT)
    assert (desk.folder / "workspace" / name).exists()


def test_the_end_of_input_at_a_question_is_no(desk):
    ask_through(desk, "gil", run("echo ran > gil"), "RESULT")
    desk.end_of_input()
    desk.expect("RESULT", "That is all.", PROMPT)
    assert not (desk.folder / "workspace/gil").exists()


@pytest.mark.parametrize("answer, runs", [("a", True), ("d", False)])
def test_always_and_never_hold_for_this_agent_and_this_command(desk, answer, runs):
    one, other = next(names), next(names)
    file = desk.folder / "workspace" / one
    ask_through(desk, one, run(f"echo 1 >> {one}"), run(f"echo 1 >> {one}"),
                run(f"echo 1 >> {one} "), "RESULT")
    desk.type(answer)
    assert desk.expect("wants", QUESTION, "> ").count(QUESTION) == 1     # the one with a space more
    desk.type("n")
    desk.expect("RESULT", "That is all.", PROMPT)
    assert (file.read_text() if file.exists() else "") == "1\n1\n" * runs
    ask_through(desk, other, run(f"echo 1 >> {one}"), "RESULT")
    desk.type("n")
    desk.expect("RESULT", "That is all.", PROMPT)


def test_the_leads_own_command_asks_at_once(desk):
    desk.model.play(lead=[run("echo ran > own"), "It ran."])
    desk.type("Run it.")
    desk.expect("lead", "echo ran > own", QUESTION, "> ")
    desk.type("y")
    desk.expect("It ran.", PROMPT)
    assert (desk.folder / "workspace/own").exists()


def test_questions_are_asked_one_after_the_other(desk):
    one, two = [run(f"echo ran > {name}") for name in ("hal", "ian")]
    desk.model.play(lead=[spawn("hal", "ian"), "At work.", "All.", "All."],
                    hal=[one, "RESULT"], ian=[two, "RESULT"])
    desk.type("Begin.")
    first = desk.expect("wants", QUESTION, "> ")
    desk.type("y")
    desk.expect("wants", QUESTION, "> ")
    desk.type("n")
    desk.expect("RESULT", "RESULT", "All.", PROMPT)
    ran = {name for name in ("hal", "ian") if (desk.folder / "workspace" / name).exists()}
    assert len(ran) == 1 and f"{ran.pop()} wants" in first


# ── Ctrl-C ───────────────────────────────────────────────────────────

def test_ctrl_c_at_the_prompt_drops_what_was_typed(desk):
    desk.model.play()
    desk.press("never sent")
    desk.expect("never sent")
    desk.press_ctrl_c()
    desk.expect(PROMPT)
    still_there(desk)
    assert "never sent" not in words_of(desk.model.calls("lead")[-1])


def test_ctrl_c_ends_the_leads_model_call(desk):
    held = desk.model.hold("TOO LATE")
    desk.model.play(lead=[held])
    desk.type("Think.")
    assert held.asked.wait(LIMIT)
    desk.press_ctrl_c()
    desk.expect(PROMPT)
    held.free.set()
    assert "TOO LATE" not in still_there(desk)


def test_ctrl_c_ends_the_leads_command_and_its_children(desk):
    lifeline = Lifeline(desk.folder / "workspace/lead")
    desk.model.play(lead=[run(HOLD.format("lead")), "It is done."])
    desk.type("Run it.")
    desk.expect(QUESTION, "> ")
    desk.type("y")
    until(lifeline.held)
    desk.press_ctrl_c()
    desk.expect(PROMPT)
    until(lambda: not lifeline.held())
    assert "It is done." not in still_there(desk)
    assert [result["is_error"] for result in results_of(desk.model.calls("lead")[-1])] == [True]


def test_ctrl_c_at_a_teammates_question_keeps_it_for_later(desk):
    ask_through(desk, "jan", run("echo ran > jan"), "RESULT")
    desk.press_ctrl_c()
    desk.expect("Waiting: 1 question(s)", "empty line", PROMPT)
    desk.type()
    desk.expect("jan", "echo ran > jan", QUESTION, "> ")
    desk.type("y")
    desk.expect("RESULT", PROMPT)
    assert (desk.folder / "workspace/jan").exists()


def test_ctrl_c_at_the_leads_own_question_takes_it_back(desk):
    desk.model.play(lead=[run("echo ran > lead-file"), "It ran."])
    desk.type("Run it.")
    desk.expect(QUESTION, "> ")
    desk.press_ctrl_c()
    assert "Waiting" not in desk.expect(PROMPT)
    assert "question" not in still_there(desk)
    assert not (desk.folder / "workspace/lead-file").exists()


def test_teammates_go_on_after_ctrl_c_and_their_results_are_announced(desk):
    held = desk.model.hold([call("write_file", path="kim", content="")])
    put_to_work(desk, kim=[held, "RESULT-K"])
    held.free.set()
    assert "RESULT-K" not in desk.expect("Waiting: 1 message(s)", "empty line", PROMPT)
    assert (desk.folder / "workspace/kim").exists()
    desk.model.play(lead=["SUMMARY-K"])
    desk.type()
    desk.expect("RESULT-K", "SUMMARY-K", PROMPT)


def test_what_came_before_the_persons_words_is_read_first(desk):
    held = desk.model.hold("RESULT-L")
    put_to_work(desk, lea=[held])
    held.free.set()
    desk.expect("Waiting: 1 message(s)", PROMPT)
    still_there(desk)
    words = words_of(desk.model.calls("lead")[-1])
    assert words.rindex("RESULT-L") < words.rindex("Are you still there?")


def test_waiting_questions_can_be_decided_by_a_command(desk):
    assert "0 question(s)" in desk.look("/team permissions")
    ask_through(desk, "max", run("echo ran > max"), "RESULT")
    desk.press_ctrl_c()
    desk.expect("Waiting: 1 question(s)", PROMPT)
    desk.type("/team permissions")
    desk.expect("max", QUESTION, "> ")
    desk.type("y")
    desk.expect("1 question(s)", PROMPT)
    until((desk.folder / "workspace/max").exists)
    desk.expect("Waiting: 1 message(s)", PROMPT)


def test_ctrl_c_at_the_prompt_leads_back_to_it_each_time(desk):
    for _ in range(5):
        desk.press_ctrl_c()
        desk.expect(PROMPT)
    still_there(desk)


# ── The screen ───────────────────────────────────────────────────────

@pytest.mark.parametrize("typed, rest", [("half a sen", "tence"), ("半句", "话，ｙ"), ("x" * 150, "y")])
def test_what_is_being_typed_survives_what_teammates_print(desk, typed, rest):
    held, name = desk.model.hold("RESULT"), next(names)
    put_to_work(desk, **{name: [held]})
    desk.press(typed)
    desk.expect_line(PROMPT + typed)
    held.free.set()
    desk.expect("Waiting: 1 message(s)", PROMPT)
    desk.expect_line(PROMPT + typed)
    desk.model.play()
    desk.type(rest)
    desk.expect("lead: ok", PROMPT)
    assert desk.model.calls("lead")[-1]["messages"][-1]["content"].endswith(typed + rest)


def test_an_answer_that_is_being_typed_survives_what_teammates_print(desk):
    held = desk.model.hold([call("write_file", path="other", content="")])
    desk.model.play(lead=[spawn("ned", "ole"), "At work.", "All.", "All."],
                    ned=[run("echo ran > ned"), "RESULT"], ole=[held, "RESULT"])
    desk.type("Begin.")
    desk.expect(QUESTION, "> ")
    desk.press("ye")
    desk.expect("ye")
    held.free.set()
    desk.expect("write_file", QUESTION, "> ye")
    desk.type("s")
    desk.expect("All.", PROMPT)
    assert (desk.folder / "workspace/ned").exists()


EVIL = "A\x1b[2J\x07\x9b31m\rB\u202eC\x08\x00D"
RAW = [sign.encode() for sign in ("\x1b[2J", "\x07", "\x9b", "\rB", "\u202e", "\x08", "\x00")]


@pytest.mark.parametrize("answer", [
    EVIL, [call("write_file", path="x", content=EVIL)], [call("write_file", path=EVIL, content="")],
    run(f"echo {EVIL} > x"), [text(EVIL), call("list_teammates")],
], ids=["words", "argument", "path", "command", "words beside a call"])
def test_control_characters_of_a_model_do_not_reach_the_terminal(desk, answer):
    before, name = len(desk.raw), next(names)
    desk.model.play(lead=[spawn(name), "At work.", EVIL, EVIL], **{name: [answer, "RESULT"]})
    desk.type("Begin.")
    if "echo" in repr(answer):
        desk.expect("echo A", "D > x", QUESTION, "> ")
        desk.type("n")
    desk.expect("result", "lead: A", "D\n", PROMPT)
    assert not [sign for sign in RAW if sign in desk.raw[before:]]


@pytest.mark.parametrize("refusal, told", [
    (ApiError(401, "authentication_error", "invalid x-api-key"), "ANTHROPIC_API_KEY"),
    (ApiError(403, "permission_error", "not yours"), "not yours"),
    (ApiError(404, "not_found_error", "model: no-such"), "MODEL_ID"),
    (ApiError(413, "request_too_large", "too much"), "too much"),
    (ApiError(429, "rate_limit_error", "slow down"), "slow down"),
    (ApiError(529, "overloaded_error", "come \x1b[2J later"), "come"),
    (Raw(b"<html>Welcome to the hotel</html>", content_type="text/html"), "Messages API"),
    (Raw.of({"hello": "world"}), "Messages API"),
], ids=lambda value: str(getattr(value, "status", "")))
def test_a_model_that_refuses_is_one_sentence_and_the_prompt(desk, refusal, told):
    def refuse(request):
        if isinstance(refusal, ApiError):
            raise refusal
        return refusal

    before = len(desk.raw)
    desk.model.play(lead=[refuse] * 3)       # the SDK tries again when that may help
    desk.type("Hello.")
    shown = desk.expect("Hello.\n", PROMPT).removeprefix("Hello.\n").removesuffix(PROMPT)
    assert shown.count("\n") == 1 and told in shown and "Traceback" not in shown
    assert b"\x1b[2J" not in desk.raw[before:]
    still_there(desk)


def test_a_teammate_without_a_model_is_failed_and_the_lead_is_told(desk):
    def refuse(request):
        raise ApiError(401, "authentication_error", "invalid x-api-key")

    desk.model.play(lead=[spawn("pia"), "At work.", "She failed."], pia=[refuse])
    desk.type("Begin.")
    desk.expect("pia", "error", "invalid x-api-key", "She failed.", PROMPT)
    assert "pia [FAILED]" in desk.look("/team list")


# ── Through pipes and files, with a model ────────────────────────────

def in_order(text, *parts):
    """Whether the parts stand in the text, each behind the one before."""
    for part in parts:
        _, found, text = text.partition(part)
        if not found:
            return False
    return True


def test_words_through_a_pipe_arrive_as_they_were_typed(errands):
    errands.words.result()
    said = words_of(errands.words_model.calls("lead")[-1])
    assert "'你好，ｙ'" in said and "'caf\ufffd\ufffd'" in said
    assert errands.words_model.server.refusals == []


def test_the_end_of_a_pipe_is_no_and_then_a_goodbye(errands):
    status, output, errors = errands.words.result()
    assert (status, errors, "\x1b" in output) == (0, "", False)
    assert in_order(output, "RESULT", "SUMMARY", PROMPT, "echo ran > lead.txt", QUESTION,
                    "It did not run.", PROMPT, "oodbye")
    assert (errands.home / "words/workspace/alice.txt").exists()
    assert not (errands.home / "words/workspace/lead.txt").exists()


def test_the_last_lines_say_where_the_record_is(errands):
    _, output, _ = errands.words.result()
    [record] = (errands.home / "words/workspace/.team").glob("*/inboxes")
    assert any(str(record) in line for line in output.splitlines()[-3:])
    assert {file.name for file in record.iterdir()} == {"alice.jsonl", "lead.jsonl"}


def test_an_unreachable_model_is_one_sentence_and_the_prompt(errands):
    status, output, errors = errands.unreachable.result()
    sentence, help_after_it = output.split(PROMPT)[1:3]
    assert (status, errors, sentence.count("\n")) == (0, "", 1)
    assert NOBODY in sentence and "/team" in help_after_it


def test_the_env_file_is_read_and_the_environment_wins_over_it(errands):
    status, output, errors = errands.settings.result()
    assert (status, errors, "It ran." in output) == (0, "", True)
    models = {request["model"] for request in errands.settings_model.calls("lead")}
    assert models == {"of-the-environment"}


def test_yes_allows_commands_and_they_run_in_the_named_workspace(errands):
    _, output, _ = errands.settings.result()
    assert QUESTION not in output
    assert (errands.home / "elsewhere/proof.txt").exists()
    assert not (errands.home / "settings/workspace").exists()


def test_offline_wins_over_a_key(errands):
    status, output, errors = errands.offline.result()
    assert (status, errors) == (0, "")
    assert in_order(output, "ffline model", PROMPT, "lead: ", PROMPT)
    assert errands.unused_model.calls("lead") == []


# ── Sessions of their own ────────────────────────────────────────────

# Python runs this when it starts: it presses Ctrl-C when one of the modules begins to load.
IMPATIENT = """
import os, signal, sys

class Impatient:
    modules = {"asyncio.runners", "pydantic.main", "anthropic.resources"}

    def find_spec(name, *_):
        if name in Impatient.modules:
            Impatient.modules.remove(name)
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Impatient)
"""


def test_ctrl_c_while_the_sdk_loads(start, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(IMPATIENT)
    terminal = start(PYTHONPATH=str(tmp_path))
    terminal.expect(PROMPT)
    for _ in range(3):
        terminal.type("Are you there?")
        terminal.expect("Are you there?\n", PROMPT)
    still_there(terminal)


def test_quitting_cuts_off_who_is_at_work_and_says_so(desk):
    lifeline = Lifeline(desk.folder / "workspace/quit")
    desk.model.play(lead=[spawn("rex", "sam"), "At work."], rex=[run(HOLD.format("quit"))],
                    sam=["RESULT-OF-SAM"])
    desk.type("Begin.")
    desk.expect(QUESTION, "> ")
    desk.type("y")
    until(lifeline.held)
    desk.press_ctrl_c()
    desk.expect(PROMPT)
    desk.type("q")
    assert desk.exit_status() == 0
    assert not lifeline.held()
    last = desk.screen[desk.seen:]
    assert "rex" in last and "undone" in last and "sam was" not in last
    record = next((desk.folder / "workspace/.team").glob("*/inboxes"))
    assert str(record) in last and "RESULT-OF-SAM" in (record / "lead.jsonl").read_text()


def test_impatient_ctrl_c_while_leaving(desk):
    put_to_work(desk, tom=[desk.model.hold("late")])     # whose model does not answer
    desk.type("q")
    desk.expect("undone")
    with contextlib.suppress(OSError):
        while desk.open:
            desk.press_ctrl_c()
            time.sleep(0.005)
    assert desk.exit_status() == 0
    assert "goodbye" in desk.screen.casefold()


def test_a_teammate_that_speaks_into_a_closed_pipe_ends_the_lesson(path, tmp_path):
    model, pipes = Model(), {name: subprocess.PIPE for name in ("stdin", "stdout", "stderr")}
    held = model.hold([call("list_teammates")])
    model.play(lead=[spawn("uli"), "At work."], uli=[held])
    with subprocess.Popen([sys.executable, path], cwd=tmp_path, env=surroundings(tmp_path, model),
                          **pipes) as process:
        process.stdin.write(b"Begin.\n")
        process.stdin.flush()
        assert held.asked.wait(LIMIT)
        process.stdout.close()
        held.free.set()                      # the keyboard stays open: only the teammate can notice
        process.wait(LIMIT)
        assert process.stderr.read() == b""
    model.end()


TOOL_OF_A_LEARNER = """
@tool("lead")
def look_inside(agent) -> str:
    \"\"\"Open the debugger.\"\"\"
    breakpoint()
    return "It was opened."


if __name__ == "__main__":
    sys.exit("""


def test_a_breakpoint_in_a_tool_opens_the_debugger(path, start, tmp_path):
    before, main, after = path.read_text("utf-8").rpartition(TOOL_OF_A_LEARNER.partition("\n\n\n")[2])
    lesson = tmp_path / "lesson" / "code.py"
    lesson.parent.mkdir()
    lesson.write_text(before + TOOL_OF_A_LEARNER + after, "utf-8")
    terminal = start(lesson=lesson)
    terminal.model.play(lead=[[call("look_inside")], "I have looked."])
    terminal.type("Look inside.")
    terminal.expect("(Pdb) ")
    terminal.type("p 'the path:', sys.path")
    assert str(lesson.parent) not in terminal.expect("('the path:'", "(Pdb) ")
    terminal.type("c")
    terminal.expect("I have looked.", PROMPT)
    assert words_of(terminal.model.calls("lead")[-1]).count("It was opened.") == 1
